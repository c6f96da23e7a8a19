from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, option
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, ExactSelector, Found, least_of


@SELECTORS.register("redsync_trimmed")
@dataclass(frozen=True)
class RedsyncTrimmed(ExactSelector):
    """Select exactly the k largest entries, by exact top-k of those above a coarse threshold.

        threshold = mean(|x|) + r * (max(|x|) - mean(|x|))
        r = 1 - step, 1 - 2 * step, ... until at least k entries reach the threshold

    Parameters
    ----------
    step : float in (0, 1): difference between one r and the next

    Notes
    -----
    The selection equals that of ``topk``. If r would fall to 0 or below, the threshold becomes 0,
    which all non-zeros reach, so the search always ends.

    Cost: in nearly every step, as for ``topk``, no extra pass over the tensor. If the pass that
    adds the gradient collected too few or too many entries, an exact top-k of the whole vector
    follows. The first step needs one pass for the moments, one per threshold, one to take
    the entries, and an exact top-k of these.

    Paper: fang2019redsync.  A widely copied implementation sends all entries above the coarse
    threshold, up to hundreds of times k; here exactly k are sent.
    """

    step: float = option(check_number, 0.2, low=0, high=1)

    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted, passes = self.count(accumulated.size), 0
        if context.miss is not None:  # the pass computed no moments, so no mean is known
            selection = context.kernels.take_largest(accumulated, wanted)
        else:
            coarse, passes = self._coarse_cut(accumulated, wanted, context)
            _, selection = context.kernels.take_at_most(accumulated, coarse, wanted)
        memo = context.margin_for(wanted)
        return Found(selection, least_of(selection), passes, memo=memo)

    def _coarse_cut(
        self, accumulated: np.ndarray, wanted: int, context: Context
    ) -> tuple[float, int]:
        """Return a threshold, and how often entries were counted. The threshold is the first of
        the formula's falling thresholds that at least ``wanted`` entries reach, or 0 if none is."""
        moments = context.moments_of(accumulated)
        ratio, passes, cut = 1.0, 0, 0.0
        while moments.nonzeros > wanted:
            ratio -= self.step
            cut = moments.abs_mean + ratio * (moments.abs_max - moments.abs_mean)
            if ratio <= 0 or cut <= 0.0:
                return 0.0, passes
            passes += 1
            if context.kernels.count_and_take(accumulated, cut, 0)[0] >= wanted:
                break
        return cut, passes
