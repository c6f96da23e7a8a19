"""Search for NaN and Inf, in one pass where there are none."""

from __future__ import annotations

import numpy as np


def is_finite(x: np.ndarray) -> bool:
    """Tell whether all entries are finite, in one pass; in two where their sum is not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(x.sum()) or np.isfinite(x).all())
