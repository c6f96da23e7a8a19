"""Looking for NaN and Inf, in one pass where there are none."""

from __future__ import annotations

import numpy as np


def is_finite(x: np.ndarray) -> bool:
    """Tell whether all entries are numbers: one pass without another array, two where their sum is
    none."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum()) or np.isfinite(x).all())
