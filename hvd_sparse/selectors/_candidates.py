"""Cutting a list of candidates down: the last resort of every threshold selector."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from hvd_sparse.core.kernels.contract import Kernels, Moments
from hvd_sparse.selectors.contract import Context, Found
from hvd_sparse.types import Selection


def largest_of(candidates: Selection, count: int, kernels: Kernels | ModuleType) -> Selection:
    """The ``count`` largest entries of a selection: exact top-k on the candidates only."""
    return kernels.trim(candidates, count, None)[0] if 0 < count < candidates.count else candidates


def take_bounded(
    accumulated: np.ndarray,
    threshold: float,
    most: int,
    moments: Moments,
    context: Context,
    passes: int,
) -> Found:
    """What lies above an estimated threshold, but at least the largest entry and at most ``most``
    of them.

    An estimate is not a count: without these two bounds it can select nothing, or nearly
    everything.
    """
    if not moments.nonzeros:
        return Found(Selection.empty(accumulated.size, accumulated.dtype), threshold, passes)
    threshold = max(0.0, min(threshold, moments.abs_max))
    selection = context.kernels.take_at_least(accumulated, threshold)
    if selection.count <= most:
        return Found(selection, threshold, passes)
    return Found(largest_of(selection, most, context.kernels), threshold, passes, is_fallback=True)
