"""Vectors on the host or a device: aligned allocation, elementwise maximum, sums, finiteness, and
subnormal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 64
"""Alignment of vectors in bytes: a cache line. TensorFlow copies arrays that are not aligned."""

SHORT = 4096
"""Entries of the longest vector whose dot product BLAS libraries compute in one thread."""


def aligned_empty(numel: int, dtype: DTypeLike) -> np.ndarray:
    return _aligned(np.empty, numel, np.dtype(dtype))


def aligned_zeros(numel: int, dtype: DTypeLike) -> np.ndarray:
    """Return an aligned vector of zeros. A page of memory is allocated when it is first written."""
    return _aligned(np.zeros, numel, np.dtype(dtype))


def write_maximum(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """Write the elementwise maximum of x and y to ``out``; NaN where either entry is NaN."""
    if isinstance(out, np.ndarray):
        np.maximum(x, y, out=out)
    else:
        out.write_maximum(x, y)


def add_at(x: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    """Add values to the entries of x at the indices, which must be unique."""
    if isinstance(x, np.ndarray):
        x[indices] += values
    else:
        x.add_at(indices, values)


def _aligned(create: Callable[..., np.ndarray], numel: int, dtype: np.dtype) -> np.ndarray:
    raw = create(numel * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + numel * dtype.itemsize].view(dtype)


def is_finite(x: np.ndarray) -> bool:
    """Return whether all entries of x are finite. Usually x is read only once, to compute its sum,
    which is finite only if all entries are."""
    if x.size <= SHORT and x.dot(x) < math.inf:  # faster than a sum, and gives no warning
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum()) or np.isfinite(x).all())


def as_array(x: np.ndarray) -> np.ndarray:
    """Return a numpy array: x itself, or a copy on the host if x is a vector on a device."""
    return x if isinstance(x, np.ndarray) else x.copy()


def keeps_subnormals() -> bool:
    """Return whether this thread keeps subnormal numbers, which ``torch.set_flush_denormal`` and
    compilers' fast-math flags turn into zero."""
    return bool(np.float32(1e-20) * np.float32(1e-20) > 0)
