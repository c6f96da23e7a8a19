from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from hvd_sparse.checks import check_cap, check_choice
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.listed import count_to
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import aim_below
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, take_bounded
from hvd_sparse.types import Memo


@SELECTORS.register("gaussian_k")
@dataclass(frozen=True)
class GaussianK(DensitySelector):
    """Select the entries above a threshold from a fitted normal distribution.

        threshold = mean + std * Phi^-1(1 - density / 2)
        up to ``rounds`` times: count the entries that reach the threshold;
            if too few: threshold *= lower; if too many: threshold *= higher

    Parameters
    ----------
    variant : "ours": halve the threshold below 2k/3 entries, multiply it by 1.5 above 4k/3, in 3
        rounds; "paper": the same, but with the one-sided quantile Phi^-1(1 - density) of Algorithm
        1, and no adjustment after the last count; "improved" (Ok-Topk): divide or multiply by 1.02
        outside [3k/4, 5k/4], in 20 rounds
    cap : float >= 1; at most cap * k entries are sent, the largest of them

    Notes
    -----
    The factors 0.5 and 1.5 may skip the thresholds that about k entries reach, so the number of
    sent entries may differ much from k. At least the largest entry is sent. If the mean is 0, the
    one-sided quantile selects twice the density.

    Cost: one pass for the mean and the standard deviation, one per round, and one to take the
    entries. On a device the pass that adds the gradient computes both statistics in nearly every
    step, and collects entries slightly smaller than the last threshold; the rounds count only
    these.

    Paper: shi2019understanding.  Departs, except for "paper": the threshold of the last round is
    used, while Algorithm 1 sends the entries that the previous round counted; the density is
    divided between both tails, as in the published code. Departs in all variants: ``cap``, and at
    least one entry is sent.
    """

    variant: str = "ours"
    cap: float = 8.0

    paper = "shi2019understanding"
    ignores = frozenset({"order", "scale"})
    asks_kernels = True
    needs_host = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.variant, "variant of GaussianK", VARIANTS)
        check_cap(self.cap, "GaussianK")

    @property
    def pass_limit(self) -> int:
        return VARIANTS[self.variant].rounds

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel, ("moments", "mean_and_std"))

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        rule = VARIANTS[self.variant]
        wanted = self.count(accumulated.size)
        moments = context.moments_of(accumulated)
        if moments.nonzeros <= wanted:  # take all non-zeros
            return Found(context.kernels.take_at_least(accumulated, 0.0), memo=context.memo)
        most = math.floor(rule.most * wanted)
        mean, std = context.kernels.mean_and_std(accumulated)
        tails = 1 if rule.is_literal else 2
        threshold = mean + std * NormalDist().inv_cdf(1 - self.share / tails)
        passes = 0
        while passes < rule.rounds:
            count = count_to(accumulated, threshold, most, context.kernels)
            passes += 1
            if rule.least * wanted <= count <= rule.most * wanted:
                break
            if passes < rule.rounds or not rule.is_literal:
                threshold *= rule.lower if count < wanted else rule.higher
        found = take_bounded(
            accumulated, threshold, int(self.cap * wanted), moments, context, passes
        )
        # If more than ``most`` candidates reach the aim, every count at a threshold above the aim
        # is exact, or exceeds ``most``.
        needed = max(found.selection.count, most + 1)
        return found._replace(memo=context.margin_for(needed))


@dataclass(frozen=True)
class Rule:
    """The parameters of a variant.

    rounds : largest number of counts
    least, most : the range of count / k that ends the rounds
    lower, higher : factors of the threshold if too few or too many entries reach it
    is_literal : follow Algorithm 1, with the one-sided quantile and no adjustment after the last
        count
    """

    rounds: int
    least: float
    most: float
    lower: float
    higher: float
    is_literal: bool = False


VARIANTS = {
    "ours": Rule(rounds=3, least=2 / 3, most=4 / 3, lower=0.5, higher=1.5),
    "paper": Rule(rounds=3, least=2 / 3, most=4 / 3, lower=0.5, higher=1.5, is_literal=True),
    "improved": Rule(rounds=20, least=3 / 4, most=5 / 4, lower=1 / 1.02, higher=1.02),
}
