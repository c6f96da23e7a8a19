"""Search for NaN and Inf, in one pass where there are none."""

from __future__ import annotations

import math

import numpy as np

SHORT = 4096
"""Entries of a vector whose product with itself no library divides among threads."""


def is_finite(x: np.ndarray) -> bool:
    """Tell whether all entries are finite, in one pass; in two where their sum is not.

    x : 1-D
    """
    if x.size <= SHORT and x.dot(x) < math.inf:  # the quicker way to a sum, and it warns of nothing
        return True
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum()) or np.isfinite(x).all())


def as_array(x: np.ndarray) -> np.ndarray:
    """Return a vector as an array of the host: itself, unless it lies on a device."""
    return x if isinstance(x, np.ndarray) else x.copy()
