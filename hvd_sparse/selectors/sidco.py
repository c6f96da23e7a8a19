from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hvd_sparse.checks import check_choice, check_number, check_whole, option
from hvd_sparse.kernels.contract import Tail
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, take_bounded
from hvd_sparse.types import Memo

STEPS = 200


def upper_tail(shape: float, x: float) -> float:
    """Return P(X > x) for a variable X with a gamma distribution of the given shape and scale 1.
    The error is about 1e-12."""
    if x <= 0:
        return 1.0
    scale = math.exp(shape * math.log(x) - x - math.lgamma(shape))
    if x < shape + 1:
        term = total = 1.0 / shape
        for n in range(1, STEPS):
            term *= x / (shape + n)
            total += term
            if term < total * 1e-16:
                break
        return 1.0 - scale * total
    # A continued fraction, by Lentz's method. The power series above converges slowly for large x.
    b = x + 1.0 - shape
    c, d = 1e300, 1.0 / b
    fraction = d
    for n in range(1, STEPS):
        a = -n * (n - shape)
        b += 2.0
        d = 1.0 / (a * d + b)
        c = b + a / c
        fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return scale * fraction


def tail_quantile(shape: float, probability: float) -> float:
    """Return the x for which P(X > x) is ``probability``, if X has a gamma distribution of the
    given shape and scale 1."""
    high = max(1.0, shape)
    while upper_tail(shape, high) > probability:
        high *= 2.0
    low = 0.0
    for _ in range(80):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if upper_tail(shape, middle) > probability else (low, middle)
    return high


def exponential(tail: Tail, ratio: float) -> float:
    """Fit an exponential distribution to ``tail``, the statistics of the magnitudes above a
    threshold. Return the distribution's quantile at 1 - ratio."""
    return -tail.mean * math.log(ratio)


def generalised_pareto(tail: Tail, ratio: float) -> float:
    """Fit a generalised Pareto distribution to the mean and the variance in ``tail``, the
    statistics of the magnitudes above a threshold. Return the quantile at 1 - ratio."""
    # Without a finite variance, fit an exponential distribution, for which the quotient is 1.
    is_usable = 0 < tail.variance < math.inf
    quotient = tail.mean / tail.variance * tail.mean if is_usable else 1.0
    shape, scale = 0.5 * (quotient - 1.0), 0.5 * tail.mean * (quotient + 1.0)
    if abs(shape) < 1e-9:
        return -scale * math.log(ratio)
    return scale * (1.0 - math.exp(shape * math.log(ratio))) / shape


def gamma(tail: Tail, ratio: float) -> float:
    """Fit a gamma distribution to ``tail``, the statistics of the magnitudes above a threshold.
    Return the distribution's quantile at 1 - ratio. The shape of the distribution is computed by
    the usual approximation to maximum likelihood."""
    # By Jensen's inequality this is positive, except for rounding or if all values are equal.
    s = max(math.log(tail.mean) - tail.mean_log, 1e-9)
    shape = (3.0 - s + math.sqrt((s - 3.0) ** 2 + 24.0 * s)) / (12.0 * s)
    return tail.mean / shape * tail_quantile(shape, ratio)


Fit = Callable[[Tail, float], float]
FITS: dict[str, tuple[Fit, Fit]] = {
    "exponential": (exponential, exponential),
    "generalised_pareto": (generalised_pareto, generalised_pareto),
    "gamma": (gamma, generalised_pareto),
}
"""For each value of ``distribution``, the fit of the first stage and that of later stages."""


@SELECTORS.register("sidco")
@dataclass(frozen=True)
class Sidco(DensitySelector):
    """Select the entries above a threshold that is estimated in stages. Each stage fits a
    distribution to the entries above the previous stage's threshold.

        stage 1: fit the magnitudes; the threshold is the fitted distribution's quantile at 1 - r1,
                 with r1 = first_ratio (r1 = density if there is one stage)
        stage m: fit the excesses over the threshold; add to the threshold the fitted distribution's
                 quantile at 1 - (density / r1)^(1 / (stages - 1))

    Parameters
    ----------
    distribution : "exponential"; "generalised_pareto"; or "gamma", with generalised Pareto in
        stages after the first
    stages : number of stages at the first step
    first_ratio : r1, in (0, 1). If the density is at least r1, there is one stage
    adapt_every : number of steps after which a tensor's number of stages changes by one if the mean
        of count / k over these steps differs from 1 by more than 20 %; 0 means never
    cap : float >= 1; of more than cap * k entries, only the cap * k largest are sent

    Notes
    -----
    With one stage more, more entries are selected if the distribution's tail is light, and fewer if
    the tail is heavy. The weight of the tail is not known in advance. So the number of stages
    changes in one direction until the error of count / k grows, and then in the other direction. At
    least the largest entry is sent.

    Cost: one pass per stage, and one to take the entries.

    Paper: abdelmoniem2021sidco.  Departs: every tensor has its own number of stages, while the
    published code has one number for all tensors; the stages end early if the tail has too few
    entries to fit; the vector is not normalised, because this does not change the selection.
    """

    distribution: str = option(check_choice, "exponential", choices=FITS)
    stages: int = option(check_whole, 1, least=1)
    first_ratio: float = option(check_number, 0.25, low=0, high=1)
    adapt_every: int = option(check_whole, 5, least=0)
    cap: float = option(check_number, 8.0, low=1, with_low=True)

    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted = self.count(accumulated.size)
        moments = context.moments_of(accumulated)
        history = History.of(context.memo, self.stages)
        threshold, passes = self._threshold(accumulated, history.stages, context)
        found = take_bounded(accumulated, threshold, self.cap * wanted, moments, context, passes)
        achieved = found.selection.count / max(1, wanted)
        most = max(1, math.ceil(-math.log2(self.share)))
        after = history.after(achieved, self.adapt_every, most)
        return found._replace(memo=list(after))

    def _threshold(
        self, accumulated: np.ndarray, stages: int, context: Context
    ) -> tuple[float, int]:
        first_fit, later_fit = FITS[self.distribution]
        if stages == 1 or self.share >= self.first_ratio:
            ratios = [self.share]
        else:
            ratios = [self.first_ratio] + [
                (self.share / self.first_ratio) ** (1 / (stages - 1))
            ] * (stages - 1)
        threshold, passes = 0.0, 0
        for stage, ratio in enumerate(ratios):
            tail = context.kernels.tail(accumulated, threshold)
            passes += 1
            # Too few entries to fit a distribution: keep the threshold of the previous stage.
            if tail.count < 2 or tail.mean <= 0:
                break
            excess = (later_fit if stage else first_fit)(tail, min(ratio, 1 - 1e-12))
            threshold += max(excess, 0.0)
        return threshold, passes


class History(NamedTuple):
    """A tensor's number of stages, and the results that decide how this number changes next.

    change : the last change of ``stages``, 1 or -1
    steps : number of steps since the last review, a step in which ``stages`` may change
    total : sum of count / k over these steps, where count is the number of selected entries
    last_error : distance of total / steps from 1 at the last review
    """

    stages: int
    change: int = 1
    steps: int = 0
    total: float = 0.0
    last_error: float = math.inf

    @classmethod
    def of(cls, memo: Memo, stages: int) -> History:
        if not isinstance(memo, list):
            return cls(stages)
        return cls(int(memo[0]), int(memo[1]), int(memo[2]), memo[3], memo[4])

    def after(self, achieved: float, adapt_every: int, most: int) -> History:
        """Return the history after a step that selected ``achieved`` * k entries. Every
        ``adapt_every`` steps, ``stages`` may change by one, to at most ``most``."""
        steps, total = self.steps + 1, self.total + achieved
        if not adapt_every or steps < adapt_every:
            return History(self.stages, self.change, steps, total, self.last_error)
        # Use the mean over several steps, because the counts of single steps scatter.
        error = abs(total / steps - 1.0)
        if error <= 0.2:
            return History(self.stages, self.change, last_error=error)
        # If the error has grown, the last change was in the wrong direction.
        change = -self.change if error > self.last_error else self.change
        return History(min(most, max(1, self.stages + change)), change, last_error=error)
