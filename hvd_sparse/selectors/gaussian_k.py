from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hvd_sparse.checks import check_choice, check_number, option
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, take_bounded

VARIANTS = {
    "ours": (3, 2 / 3, 4 / 3, 0.5, 1.5),
    "paper": (3, 2 / 3, 4 / 3, 0.5, 1.5),
    "improved": (20, 3 / 4, 5 / 4, 1 / 1.02, 1.02),
}
"""For each variant: the largest number of rounds; the least and the largest number of entries, as
multiples of k, with which the rounds end; and the factors by which the threshold is multiplied if
fewer or more entries reach it."""


@SELECTORS.register("gaussian_k")
@dataclass(frozen=True)
class GaussianK(DensitySelector):
    """Select the entries above a threshold that is estimated with a normal distribution.

        threshold = mean + std * Phi^-1(1 - density / 2)
        up to ``rounds`` times: count the entries whose magnitudes reach the threshold;
            if too few: threshold *= lower; if too many: threshold *= higher; otherwise stop

    Phi^-1 gives the quantiles of the standard normal distribution. The variant sets ``rounds``,
    ``lower`` and ``higher``.

    Parameters
    ----------
    variant : "ours" halves the threshold if fewer than 2k/3 entries reach it, and multiplies it by
        1.5 if more than 4k/3 do. It takes up to 3 rounds. "paper" does the same with the one-sided
        quantile Phi^-1(1 - density) of the paper's Algorithm 1, and does not change the threshold
        after the last count. "improved", from Ok-Topk, divides the threshold by 1.02 if fewer than
        3k/4 entries reach it, and multiplies it by 1.02 if more than 5k/4 do. It takes up to 20
        rounds
    cap : float >= 1; of more than cap * k entries, only the cap * k largest are sent

    Notes
    -----
    The number of sent entries may be far from k, because the factors 0.5 and 1.5 may skip all
    thresholds that about k entries reach. At least the largest entry is sent. If the mean is 0, the
    one-sided quantile selects about twice as many entries as the density asks for, because entries
    of both signs reach the threshold.

    Cost: one pass for mean and standard deviation, one per round, and one to take the entries.

    Paper: shi2019understanding.  Departs: the number of entries is bounded by ``cap``, and at least
    one entry is sent; ``variant`` lists the other differences from Algorithm 1.
    """

    variant: str = option(check_choice, "ours", choices=VARIANTS)
    cap: float = option(check_number, 8.0, low=1, with_low=True)

    ignores = frozenset({"order", "scale"})
    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        rounds, least, most, lower, higher = VARIANTS[self.variant]
        is_literal = self.variant == "paper"
        wanted = self.count(accumulated.size)
        moments = context.moments_of(accumulated)
        if moments.nonzeros <= wanted:  # take all non-zeros
            return Found(context.kernels.take_at_least(accumulated, 0.0))
        mean, std = context.kernels.mean_and_std(accumulated)
        tails = 1 if is_literal else 2
        probability = min(1 - self.share / tails, 1 - 1e-16)  # 1 has no quantile
        threshold = mean + std * NormalDist().inv_cdf(probability)
        passes = 0
        while passes < rounds:
            count = context.kernels.count_and_take(accumulated, threshold, 0)[0]
            passes += 1
            if least * wanted <= count <= most * wanted:
                break
            if passes < rounds or not is_literal:
                threshold *= lower if count < wanted else higher
        return take_bounded(accumulated, threshold, self.cap * wanted, moments, context, passes)
