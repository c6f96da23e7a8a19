"""Exact top-k: the yardstick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import AIM
from hvd_sparse.selectors._exact import ExactSelector
from hvd_sparse.selectors._search import Band, search_threshold
from hvd_sparse.selectors.contract import Context, Found
from hvd_sparse.selectors.ldte import laplace_threshold

MAX_PASSES = 16
"""Counts before the entries above the bracket's low end, all of them, are cut to k."""


@SELECTORS.register("topk")
@dataclass(frozen=True)
class TopK(ExactSelector):
    """Keep exactly the k entries of largest magnitude.

        k = max(1, min(numel, floor(numel * density + 1e-9)))

    Parameters
    ----------
    density : float in (0, 1]

    Notes
    -----
    Fewer than k non-zeros: all of them.  Of equal magnitudes the lower index goes first.

    Cost: none beside the pass that adds the gradient in nearly every step: it takes what is a
    little smaller than the last step's k-th magnitude along, and the list is cut to k.  Else
    counting passes, from the Laplace estimate (``ldte_bs``) at the first step and from just below
    the last threshold in groups, until at most 3 k entries are left, and one to take them.

    Paper: aji2017sparse.  Departs: k entries of each tensor rather than one threshold for all.
    """

    paper: ClassVar[str | None] = "aji2017sparse"
    needs_host: ClassVar[str] = ""

    @property
    def pass_limit(self) -> int:
        return MAX_PASSES

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kernels, moments = context.kernels, context.moments_of(accumulated)
        count = self.count(accumulated.size)
        if moments.nonzeros <= count:
            return Found(kernels.take_at_least(accumulated, 0.0), context.warm, memo=context.memo)
        miss = context.miss
        if miss:
            first, known = miss.retry, miss.known
        else:  # with a last threshold in groups, where no pass takes entries along
            warm = context.warm
            first = AIM * warm if warm else laplace_threshold(moments, count)
            known = None
        band = Band(count, 2 * count, 3 * count)
        result = search_threshold(
            accumulated, first, band, moments, kernels, "log_count", MAX_PASSES, known
        )
        selection, threshold = kernels.trim(
            result.selection, count, None
        )  # a converged one is up to 3 k
        memo = context.margin_for(count)
        return Found(selection, threshold, result.passes, memo=memo)
