"""The contracts of ``core.kernels.contract``, as checks that any engine can be put to.

Every expectation is worked out here, entry by entry, from the words of the contract; no kernel is
used for it.
"""

from __future__ import annotations

import contextlib
import math
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
from distributions import ALL, draw

from hvd_sparse.types import Selection

NUMELS = (0, 1, 2, 257)


def vectors(dtype: str) -> list[np.ndarray]:
    """Every distribution at every size, and one of each with NaN in it."""
    plain = [draw(name, numel, dtype) for name in ALL for numel in NUMELS]
    holed = [
        np.where(np.arange(x.size) % 5 == 3, np.dtype(dtype).type(np.nan), x)
        for x in plain
        if x.size > 2
    ]
    return plain + holed


def thresholds(x: np.ndarray) -> list[float]:
    """Magnitudes that occur (so that >= matters), between two of them, zero, and beyond all."""
    occurring = sorted({abs(v) for v in x.tolist() if v == v})
    picked = occurring[:: max(1, len(occurring) // 4)] + occurring[-1:]
    return [
        0.0,
        0.1,
        *picked,
        *(0.999 * v for v in picked),
        *(1.001 * v + 1.0 for v in picked[-1:]),
    ]


def rounded(threshold: float, dtype: np.dtype) -> float:
    """The nearest number of the dtype, by way of its bytes."""
    return (
        struct.unpack("<f", struct.pack("<f", threshold))[0] if dtype == np.float32 else threshold
    )


@contextlib.contextmanager
def untouched(*arrays: np.ndarray) -> Iterator[None]:
    """A kernel leaves these alone: their bits are the same afterwards."""
    before = [array.tobytes() for array in arrays]
    yield
    assert before == [array.tobytes() for array in arrays], "a kernel wrote to its input"


def assert_takes(selection: Selection, x: np.ndarray, expected: list[int]) -> None:
    """The selection is exactly these indices of x, in the form that every selection has."""
    assert isinstance(selection, Selection)
    assert selection.indices.dtype == np.uint32
    assert selection.values.dtype == x.dtype
    assert selection.numel == x.size
    assert selection.indices.tolist() == expected
    assert selection.values.tobytes() == x[np.array(expected, np.intp)].tobytes()


def check_moments(kernels: Any, x: np.ndarray) -> None:
    with untouched(x):
        moments = kernels.moments(x)
    magnitudes = [abs(v) for v in x.tolist()]
    assert moments.numel == x.size
    if any(math.isnan(v) for v in magnitudes):
        assert not moments.is_finite
        return
    assert moments.is_finite
    assert moments.abs_max == max(magnitudes, default=0.0)
    assert moments.nonzeros == sum(v != 0 for v in magnitudes)
    assert math.isclose(moments.abs_sum, math.fsum(magnitudes), rel_tol=1e-12)


def check_sum_is_wide(kernels: Any) -> None:
    """Sums are kept in float64: a float32 sum would stand still at 2**24."""
    x = np.ones(2**17 + 1, np.float32)
    x[0] = 2.0**24
    x[1:] = 0.5
    assert math.isclose(kernels.moments(x).abs_sum, 2.0**24 + 2**16, rel_tol=1e-12)
    thirds = np.full(30_011, 1 / 3, np.float32)
    assert math.isclose(kernels.moments(thirds).abs_sum, 30_011 * float(thirds[0]), rel_tol=1e-12)


def check_infinity_is_reported(kernels: Any, dtype: str) -> None:
    for bad in (np.inf, -np.inf, np.nan):
        assert not kernels.moments(np.array([1, bad, 2], dtype)).is_finite


def check_count_at_least(kernels: Any, x: np.ndarray) -> None:
    for threshold in thresholds(x):
        cut = rounded(threshold, x.dtype)
        with untouched(x):
            count = kernels.count_at_least(x, threshold)
        assert isinstance(count, int)
        assert count == sum(abs(v) >= cut for v in x.tolist()), f"threshold {threshold!r}"


def check_take_at_least(kernels: Any, x: np.ndarray) -> None:
    for threshold in thresholds(x):
        cut = rounded(threshold, x.dtype)
        with untouched(x):
            taken = kernels.take_at_least(x, threshold)
        assert_takes(taken, x, [i for i, v in enumerate(x.tolist()) if abs(v) >= cut and v != 0])


def check_take_largest(kernels: Any, x: np.ndarray) -> None:
    takeable = [i for i, v in enumerate(x.tolist()) if v == v and v != 0]
    by_size = sorted(takeable, key=lambda i: (-abs(float(x[i])), i))
    for count in {-1, 0, 1, 2, x.size // 3, x.size - 1, x.size, x.size + 5}:
        with untouched(x):
            taken = kernels.take_largest(x, count)
        assert_takes(taken, x, sorted(by_size[: max(0, count)]))


def check_threshold_is_rounded(kernels: Any) -> None:
    """float32(0.7) lies below 0.7 and float32(0.1) above 0.1: entries that hold them are at least
    the threshold."""
    for threshold in (0.7, 0.1):
        largest_below = np.nextafter(np.float32(threshold), np.float32(0))
        x = np.array([threshold, -threshold, largest_below], np.float32)
        assert kernels.count_at_least(x, threshold) == 2
        assert kernels.take_at_least(x, threshold).indices.tolist() == [0, 1]


def check_compensate(kernels: Any, x: np.ndarray) -> None:
    gradient, residual = x, x[::-1].copy()
    expected = np.array([a + b for a, b in zip(residual, gradient)], x.dtype).tobytes()
    out = np.full_like(x, 9)
    with untouched(gradient, residual):
        kernels.compensate(gradient, residual, out)
    assert out.tobytes() == expected
    with untouched(gradient):
        kernels.compensate(gradient, residual, residual)
    assert residual.tobytes() == expected


def check_clear(kernels: Any, x: np.ndarray) -> None:
    residual, indices = x.copy(), np.arange(0, x.size, 3, dtype=np.uint32)
    with untouched(indices):
        kernels.clear(residual, indices)
    for i, (now, before) in enumerate(zip(residual, x)):
        expected = x.dtype.type(0) if i % 3 == 0 else before
        assert now.tobytes() == expected.tobytes(), f"entry {i}"


def check_scatter_add(kernels: Any, x: np.ndarray) -> None:
    out = x.copy()
    indices = np.arange(1, x.size, 2, dtype=np.uint32)
    values = x[::-1][: indices.size].copy()
    expected = x.copy()
    for i, value in zip(indices.tolist(), values):
        expected[i] = expected[i] + value
    with untouched(indices, values):
        kernels.scatter_add(out, indices, values)
    assert out.tobytes() == expected.tobytes()


def check_assemble(kernels: Any, x: np.ndarray) -> None:
    """Sums of 0 to 3 lists that overlap, in their order, whatever was there before."""
    lists = [
        np.arange(start, x.size, step, dtype=np.uint32) for start, step in ((0, 2), (1, 3), (0, 1))
    ]
    parts = [Selection(indices, x[::-1][: indices.size].copy(), x.size) for indices in lists]
    for count in range(4):
        out, expected = np.full_like(x, 7), np.zeros_like(x)
        for part in parts[:count]:
            for i, value in zip(part.indices.tolist(), part.values):
                expected[i] = expected[i] + value
        kernels.assemble(out, parts[:count])
        assert out.tobytes() == expected.tobytes()


PER_VECTOR = (
    check_assemble,
    check_moments,
    check_count_at_least,
    check_take_at_least,
    check_take_largest,
    check_compensate,
    check_clear,
    check_scatter_add,
)
