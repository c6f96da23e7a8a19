"""Exact cuts of candidates, with which threshold selectors bound the number of entries."""

from __future__ import annotations

import numpy as np

from hvd_sparse.kernels.contract import Kernels, Moments
from hvd_sparse.selectors.contract import Context, Found
from hvd_sparse.types import Selection


def largest_of(candidates: Selection, count: int, kernels: Kernels) -> Selection:
    """Return the ``count`` largest entries of a selection."""
    return kernels.trim(candidates, count, None)[0] if 0 < count < candidates.count else candidates


def least_of(selection: Selection) -> float | None:
    """Return the smallest magnitude of a selection; None if it is empty."""
    return float(np.abs(selection.values).min()) if selection.count else None


def take_bounded(
    accumulated: np.ndarray,
    threshold: float,
    most: int,
    moments: Moments,
    context: Context,
    passes: int,
) -> Found:
    """Take the entries above an estimated threshold, at least one and at most ``most``.

    The bounds are needed because an estimate can select nothing, or nearly everything. If more than
    ``most`` entries reach the threshold, the largest are taken.
    """
    if not moments.nonzeros:
        return Found(Selection.empty(accumulated.size, accumulated.dtype), threshold, passes)
    threshold = max(0.0, min(threshold, moments.abs_max))
    count, selection = context.kernels.take_at_most(accumulated, threshold, most)
    return Found(selection, threshold, passes, is_fallback=count > most)
