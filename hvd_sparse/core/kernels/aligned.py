"""Arrays that frameworks take as they are, and that loops read and write in whole cache lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes: a cache line.  TensorFlow copies an array that begins elsewhere, unless it was built or
told otherwise."""


def aligned_empty(numel: int, dtype: Any) -> np.ndarray:
    """A vector that nobody has written to, at an address that is a multiple of 64."""
    return _aligned(np.empty, numel, np.dtype(dtype))


def aligned_zeros(numel: int, dtype: Any) -> np.ndarray:
    """A vector of zeros at such an address; memory is taken where it is first written."""
    return _aligned(np.zeros, numel, np.dtype(dtype))


def _aligned(create: Callable[..., np.ndarray], numel: int, dtype: np.dtype) -> np.ndarray:
    raw = create(numel * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + numel * dtype.itemsize].view(dtype)
