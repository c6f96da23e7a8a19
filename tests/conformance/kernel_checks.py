"""Checks of the kernels in ``kernels.contract`` against results computed entry by entry."""

import contextlib
import itertools
import math

import numpy as np
from conformance import hostile
from conformance.hostile import bits
from distributions import ALL, draw

from hvd_sparse.types import Selection

NUMELS = (0, 1, 2, 257)


def vectors(dtype):
    plain = [draw(name, numel, dtype) for name in ALL for numel in NUMELS]
    holed = [
        np.where(np.arange(x.size) % 5 == 3, np.dtype(dtype).type(np.nan), x)
        for x in plain
        if x.size > 2
    ]
    return plain + holed + hostile.vectors(dtype)


def has_statistics(x):
    return all(math.isfinite(v * v) for v in x.tolist())


def thresholds(x):
    occurring = sorted({abs(v) for v in x.tolist() if v == v})
    picked = occurring[:: max(1, len(occurring) // 4)] + occurring[-1:]
    return [
        0.0,
        1e-300,
        0.1,
        *picked,
        *(0.999 * v for v in picked),
        *(1.001 * v + 1.0 for v in picked[-1:]),
        math.nan,
        -math.nan,
    ]


def rounded(threshold, dtype):
    with np.errstate(over="ignore"):
        return float(np.dtype(dtype).type(threshold))


@contextlib.contextmanager
def untouched(*arrays):
    before = [array.tobytes() for array in arrays]
    yield
    assert before == [array.tobytes() for array in arrays], "a kernel wrote to its input"


def assert_takes(selection, x, expected):
    assert isinstance(selection, Selection)
    assert selection.indices.dtype == np.uint32
    assert selection.values.dtype == x.dtype
    assert selection.numel == x.size
    assert selection.indices.tolist() == expected
    assert selection.values.tobytes() == x[np.array(expected, np.intp)].tobytes()


def check_moments(kernels, x):
    with untouched(x):
        assert_moments(kernels.moments(x), x)


def assert_moments(moments, x):
    magnitudes = [abs(v) for v in x.tolist()]
    assert moments.numel == x.size
    assert moments.is_finite == math.isfinite(sum(magnitudes))
    if not moments.is_finite:
        return
    assert moments.abs_max == max(magnitudes, default=0.0)
    assert moments.nonzeros == sum(v != 0 for v in magnitudes)
    assert math.isclose(moments.abs_sum, math.fsum(magnitudes), rel_tol=1e-12)


def check_sum_is_wide(kernels):
    """Check that sums are computed in float64. A sum in float32 would not grow beyond 2**24
    here."""
    x = np.ones(2**17 + 1, np.float32)
    x[0] = 2.0**24
    x[1:] = 0.5
    assert math.isclose(kernels.moments(x).abs_sum, 2.0**24 + 2**16, rel_tol=1e-12)
    thirds = np.full(30_011, 1 / 3, np.float32)
    assert math.isclose(kernels.moments(thirds).abs_sum, 30_011 * float(thirds[0]), rel_tol=1e-12)


def check_reaching(kernels, x):
    """Check counts and lists of the entries that reach a threshold."""
    magnitudes = [abs(v) for v in x.tolist()]
    for threshold in thresholds(x):
        cut = rounded(threshold, x.dtype)
        reach = [i for i, v in enumerate(magnitudes) if v >= cut and v != 0]
        by_size = sorted(reach, key=lambda i: (-magnitudes[i], i))
        with untouched(x):
            taken = kernels.take_at_least(x, threshold)
        assert_takes(taken, x, reach)
        for most in {0, 1, len(reach) // 2, len(reach) - 1, len(reach), x.size + 3} - {-1}:
            with untouched(x):
                count, taken = kernels.take_at_most(x, threshold, most)
            assert count == len(reach)
            assert_takes(taken, x, sorted(by_size[:most]))
            with untouched(x):
                count, taken = kernels.count_and_take(x, threshold, most)
            assert isinstance(count, int)
            assert count == len(reach), f"threshold {threshold!r}"
            if count > most:
                assert taken is None
            else:
                assert_takes(taken, x, reach)


def check_take_largest(kernels, x):
    takeable = [i for i, v in enumerate(x.tolist()) if v == v and v != 0]
    by_size = sorted(takeable, key=lambda i: (-abs(float(x[i])), i))
    for count in {-1, 0, 1, 2, x.size // 3, x.size - 1, x.size, x.size + 5}:
        with untouched(x):
            taken = kernels.take_largest(x, count)
        assert_takes(taken, x, sorted(by_size[: max(0, count)]))


def check_threshold_is_rounded(kernels):
    """Check that thresholds are rounded to float32. float32(0.7) is below 0.7, and float32(0.1) is
    above 0.1, but entries with these values reach the thresholds 0.7 and 0.1."""
    for threshold in (0.7, 0.1):
        largest_below = np.nextafter(np.float32(threshold), np.float32(0))
        x = np.array([threshold, -threshold, largest_below], np.float32)
        assert kernels.count_and_take(x, threshold, 0) == (2, None)
        assert kernels.take_at_least(x, threshold).indices.tolist() == [0, 1]


def check_assemble(kernels, x):
    """Check sums of 0 to 3 overlapping lists, in their order, which replace the previous content.

    The factor multiplies (and rounds) each value, not the sum.
    """
    lists = [
        np.arange(start, x.size, step, dtype=np.uint32) for start, step in ((0, 2), (1, 3), (0, 1))
    ]
    parts = [Selection(indices, x[::-1][: indices.size].copy(), x.size) for indices in lists]
    for count, factor in itertools.product(range(4), (1.0, 1 / 3)):
        out, expected = np.full_like(x, 7), np.zeros_like(x)
        for part in parts[:count]:
            for i, value in zip(part.indices.tolist(), part.values):
                expected[i] = expected[i] + value * x.dtype.type(factor)
        with untouched(*(part.values for part in parts)):
            kernels.assemble(out, parts[:count], factor)
        assert bits(out) == bits(expected)


PER_VECTOR = (check_assemble, check_moments, check_reaching, check_take_largest)
