from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import AIM, Band
from hvd_sparse.selectors._search import search_threshold
from hvd_sparse.selectors.contract import Context, ExactSelector, Found
from hvd_sparse.selectors.ldte import laplace_threshold

MAX_PASSES = 16
"""Largest number of counts in a search. If a search has not ended by then, exact top-k selects."""


@SELECTORS.register("topk")
@dataclass(frozen=True)
class TopK(ExactSelector):
    """Select exactly the k entries of largest magnitude.

        k = max(1, min(numel, floor(numel * density + 1e-9)))

    If there are fewer than k non-zero entries, all of them are selected.  If magnitudes are equal,
    the entry with the lower index is selected first.

    Cost: in nearly every step, no extra pass over the tensor. The pass that adds the gradient to
    the residual also collects the entries whose magnitudes reach a value slightly below the
    previous step's threshold. The k largest of these entries are selected. On the first step, and
    sometimes for tensors in groups, the pass collects no entries. If it collects none, too few or
    too many, further passes search for a threshold that k to 3 k entries reach. Then the k largest
    of those are selected. The search starts near the previous step's threshold or, if there is
    none, at a threshold that is estimated with a Laplace distribution (see ``ldte_bs``).

    Paper: aji2017sparse.  Departs: k entries of each tensor are selected, while the paper uses one
    threshold for all tensors.
    """

    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kernels, moments = context.kernels, context.moments_of(accumulated)
        count = self.count(accumulated.size)
        if moments.nonzeros <= count:
            return Found(kernels.take_at_least(accumulated, 0.0), context.warm, memo=context.memo)
        miss = context.miss
        known, warm = None, context.warm
        if miss:
            first, known = miss.retry, miss.known
        else:  # a tensor in a group may have a threshold although its pass collected no entries
            first = AIM * warm if warm else laplace_threshold(moments, count)
        band = Band(count, 2 * count, 3 * count)
        found = search_threshold(
            accumulated, first, band, moments, kernels, "log_count", MAX_PASSES, known
        )
        # The search may have selected up to 3 k entries.
        selection, threshold = kernels.trim(found.selection, count, None)
        memo = context.margin_for(count)
        return Found(selection, threshold, found.passes, memo=memo)
