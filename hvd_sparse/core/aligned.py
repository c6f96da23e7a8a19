"""Arrays that frameworks take as they are."""

from __future__ import annotations

from typing import Any

import numpy as np

ALIGNMENT = 64
"""Bytes.  TensorFlow copies an array that begins elsewhere, unless it was built or told otherwise."""


def aligned_empty(numel: int, dtype: Any) -> np.ndarray:
    """A vector that nobody has written to, at an address that is a multiple of 64."""
    dtype = np.dtype(dtype)
    raw = np.empty(numel * dtype.itemsize + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + numel * dtype.itemsize].view(dtype)
