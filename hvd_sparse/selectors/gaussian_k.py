"""Gaussian-k: a threshold from a fitted normal distribution, nudged a few times."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_cap, check_choice
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.listed import count_to
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import aim_below
from hvd_sparse.selectors._candidates import take_bounded
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Memo


@SELECTORS.register("gaussian_k")
@dataclass(frozen=True)
class GaussianK(DensitySelector):
    """Keep what lies above a threshold read off a fitted normal distribution.

        threshold = mean + std * Phi^-1(1 - density / 2)
        up to ``rounds`` times: too few entries: threshold *= lower; too many: threshold *= higher

    Parameters
    ----------
    density : float in (0, 1]
    variant : "ours": halve below 2k/3, times 1.5 above 4k/3, 3 rounds;
        "paper": likewise, from the one-sided quantile Phi^-1(1 - density) of Algorithm 1, and what
        the last round counted is sent;
        "improved" (Ok-Topk): divide or multiply by 1.02 outside [3k/4, 5k/4], 20 rounds
    cap : float >= 1; never more than cap * k entries: beyond, the largest of them

    Notes
    -----
    Factors of 0.5 and 1.5 do not bracket the threshold, so the count can end far from k; at least
    the largest entry is sent. The one-sided quantile asks for twice the density, if the mean is 0.

    Cost: one pass for mean and standard deviation, one a round, one to take the entries.  On a
    device mean and standard deviation come with the pass that adds the gradient in nearly every
    step, and with it what is a little smaller than the last threshold, among which rounds count.

    Paper: shi2019understanding.  Departs, but for "paper": the threshold of the last round is used,
    where Algorithm 1 sends what the round before counted; both tails share the density, as in the
    published code. In all variants: the cap, and the floor of one entry.
    """

    variant: str = "ours"
    cap: float = 8.0

    paper: ClassVar[str | None] = "shi2019understanding"
    ignores: ClassVar[frozenset[str]] = frozenset({"order", "scale"})
    asks_kernels: ClassVar[bool] = True
    needs_host: ClassVar[str] = ""

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
        if moments.nonzeros <= wanted:  # no threshold leaves more
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
        # A list of more than the band allows settles every count, wherever its threshold lies.
        needed = max(found.selection.count, most + 1)
        return found._replace(memo=context.margin_for(needed))


@dataclass(frozen=True)
class Rule:
    """A rule that moves the threshold.

    Attributes
    ----------
    rounds : how often entries are counted
    least, most : the band of counts over k that ends it
    lower, higher : factors of the threshold
    is_literal : Algorithm 1 to the letter: the one-sided quantile, and no factor after the last
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
