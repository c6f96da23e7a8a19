"""Aligned arrays, which frameworks take without a copy and loops read in whole cache lines."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import DTypeLike

ALIGNMENT = 64
"""Bytes of a cache line.

TensorFlow copies an array that begins elsewhere, unless it was built or told otherwise."""


def aligned_empty(numel: int, dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised vector at an address that is a multiple of 64.

    Parameters
    ----------
    numel : entries
    dtype : of the entries
    """
    return _aligned(np.empty, numel, np.dtype(dtype))


def aligned_zeros(numel: int, dtype: DTypeLike) -> np.ndarray:
    """Return a vector of zeros at an address that is a multiple of 64.

    The system hands out memory where the vector is first written, so one that is never written
    costs none.
    """
    return _aligned(np.zeros, numel, np.dtype(dtype))


def empty_like(x: np.ndarray) -> np.ndarray:
    """Return an uninitialised vector of x's size and dtype where x lies, perhaps on a device."""
    return np.empty_like(x) if isinstance(x, np.ndarray) else x.empty_like()


def write_maximum(x: np.ndarray, y: np.ndarray, out: np.ndarray) -> None:
    """Write the elementwise maximum to ``out``, NaN if either entry is NaN; all three arrays are on
    the host or on one device."""
    if isinstance(out, np.ndarray):
        np.maximum(x, y, out=out)
    else:
        out.write_maximum(x, y)


def _aligned(create: Callable[..., np.ndarray], numel: int, dtype: np.dtype) -> np.ndarray:
    raw = create(numel * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + numel * dtype.itemsize].view(dtype)
