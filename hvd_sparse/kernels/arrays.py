"""Vectors: aligned ones, which frameworks take without a copy, and a search for NaN and Inf."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 64
"""Bytes of a cache line.

TensorFlow copies an array that begins elsewhere, unless it was built or told otherwise."""

SHORT = 4096
"""Entries of a vector whose product with itself no library divides among threads."""


def aligned_empty(numel: int, dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised vector at an address that is a multiple of 64."""
    return _aligned(np.empty, numel, np.dtype(dtype))


def aligned_zeros(numel: int, dtype: DTypeLike) -> np.ndarray:
    """Return such a vector of zeros; memory that is never written costs none."""
    return _aligned(np.zeros, numel, np.dtype(dtype))


def empty_like(x: np.ndarray) -> np.ndarray:
    """Return an uninitialised vector of x's size and dtype where x lies, perhaps on a device."""
    return np.empty_like(x) if isinstance(x, np.ndarray) else x.empty_like()


def write_maximum(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """Write the elementwise maximum to ``out``, NaN if either entry is; on the host or on one
    device."""
    if isinstance(out, np.ndarray):
        np.maximum(x, y, out=out)
    else:
        out.write_maximum(x, y)


def _aligned(create: Callable[..., np.ndarray], numel: int, dtype: np.dtype) -> np.ndarray:
    raw = create(numel * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + numel * dtype.itemsize].view(dtype)


def is_finite(x: np.ndarray) -> bool:
    """Tell whether all entries of a vector are finite: one pass, two if their sum is not."""
    if x.size <= SHORT and x.dot(x) < math.inf:  # the quicker way to a sum, and it warns of nothing
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum()) or np.isfinite(x).all())


def as_array(x: np.ndarray) -> np.ndarray:
    """Return a vector as an array of the host: itself, unless it lies on a device."""
    return x if isinstance(x, np.ndarray) else x.copy()
