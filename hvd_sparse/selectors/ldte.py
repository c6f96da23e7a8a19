"""LDTE: a top-k threshold from the tail of a fitted Laplace distribution, also corrected."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import (
    check_cap,
    check_choice,
    check_truth,
    check_whole,
    count_from_density,
)
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.contract import Aim, Moments
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import AIM, aim_below
from hvd_sparse.selectors._search import STEPS, Band, band_around, is_tolerance, search_threshold
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, take_bounded
from hvd_sparse.types import Memo


def laplace_threshold(moments: Moments, count: int) -> float:
    """Return the magnitude that a fraction count / numel of a Laplace(0, b) distribution exceeds.

        b = mean(|x|)                  maximum likelihood, location 0
        t = b * ln(numel / count)      from P(|x| > t) = exp(-t / b)

    It is 0 for ``count == numel``.
    """
    return moments.abs_mean * math.log(moments.numel / count)


@SELECTORS.register("ldte")
@dataclass(frozen=True)
class Ldte(DensitySelector):
    """Select the entries above the threshold of a fitted Laplace distribution, uncorrected.

        threshold = mean(|accumulated|) * ln(numel / k)

    Parameters
    ----------
    cap : float >= 1; at most cap * k entries are sent, the largest of them

    Notes
    -----
    Stated by the paper: the residual gradient is closer to a Laplace than to a normal distribution;
    the threshold follows from the area under its tail, its parameter from maximum likelihood.
    Derived by us: the formula above, location 0.

    For other distributions the count differs much from k. Under error feedback the tail is cut off,
    and the estimate selects very few entries: use ``ldte_bs``.  At least the largest entry is sent.

    Cost: one pass for the mean, one to take the entries; on a device a single pass in nearly every
    step, which also collects entries slightly smaller than the last threshold.

    Paper: chen2021ldte.  Departs: ``cap``, and at least one entry.
    """

    cap: float = 8.0

    paper = "chen2021ldte"
    asks_kernels = True
    needs_host = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cap(self.cap, "Ldte")

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel, ("moments",))

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        moments = context.moments_of(accumulated)
        count = self.count(accumulated.size)
        threshold = laplace_threshold(moments, count) if count else 0.0
        found = take_bounded(accumulated, threshold, int(self.cap * count), moments, context, 0)
        return found._replace(memo=context.margin_for(found.selection.count))


@SELECTORS.register("ldte_bs")
@dataclass(frozen=True)
class LdteBs(DensitySelector):
    """Select about k entries above a threshold from a fitted Laplace distribution, corrected by
    counting.

        t0 = mean(|accumulated|) * ln(numel / k)
        repeat: count(|accumulated| >= t); stop inside [low * k, high * k]; else narrow the bracket

    Parameters
    ----------
    search : "log_count" interpolates the logarithm of the count inside the bracket; "bisection"
        halves it
    tolerance : (low, high) with 0 < low <= 1 <= high: the counts, over k, that end the search
    max_passes : largest number of counts, over the vector or among candidates, after which exact
        top-k selects among the candidates
    warm_start : start just below the tensor's last threshold

    Notes
    -----
    Stated by the paper: fit a Laplace distribution to the residual gradient, read the top-k
    threshold off it, correct it by binary search; no sampling, no sort. Derived by us, because we
    had no access to the paper's text on these: t0 in closed form (maximum likelihood, location 0),
    the bracket [0, max], the tolerance, the limit on counts, the interpolation, the warm start, the
    search among candidates, and the guaranteed ending.

    If the bracket closes, the passes are used up or two counts do not narrow the bracket (ties,
    spikes), exact top-k selects k entries. So the count is always inside the tolerance, or exactly
    min(k, non-zeros).

    Cost: in nearly every step no pass besides the one that adds the gradient, which also collects
    entries slightly smaller than the last threshold; if there are more than the tolerance allows,
    the k largest are kept. Otherwise, for example on the first step, one pass per count and one to
    take the entries; once at most 16 k entries reach a threshold, the search continues among them
    (docs/results/selecting.md).

    Paper: chen2021ldte.  Departs: ``search="bisection", warm_start=False`` is the nearest to its
    text; the defaults need fewer passes for the same guarantee.
    """

    search: str = "log_count"
    tolerance: tuple[float, float] = (0.8, 1.3)
    max_passes: int = 16
    warm_start: bool = True

    paper = "chen2021ldte"
    needs_host = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice(self.search, "search of LdteBs", STEPS)
        check_whole(self.max_passes, "max_passes of LdteBs", 1)
        check_truth(self.warm_start, "warm_start of LdteBs")
        if not is_tolerance(self.tolerance):
            raise InvalidOption(
                f"tolerance of LdteBs is {self.tolerance!r}: give two numbers (low, high) with "
                "0 < low <= 1 <= high"
            )
        object.__setattr__(self, "tolerance", tuple(self.tolerance))

    @property
    def pass_limit(self) -> int:
        return self.max_passes

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        if not self.warm_start:
            return None
        return aim_below(warm, memo, count_from_density(numel, self.share), numel)

    def band(self, numel: int) -> Band | None:
        return band_around(count_from_density(numel, self.share), self.tolerance)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kernels, miss = context.kernels, context.miss
        count = self.count(accumulated.size)
        moments = context.moments_of(accumulated)
        band = band_around(count, self.tolerance)
        if moments.nonzeros <= band.most:
            # All non-zeros are selected, so no search is needed.
            return Found(kernels.take_at_least(accumulated, 0.0), context.warm, memo=context.memo)
        known, warm = None, context.warm if self.warm_start else None
        if miss:  # gives the side of the threshold at no cost
            first, known = miss.retry, miss.known
        else:
            first = AIM * warm if warm else laplace_threshold(moments, count)
        result = search_threshold(
            accumulated, first, band, moments, kernels, self.search, self.max_passes, known
        )
        memo, is_fallback = context.margin_for(band.least), not result.converged
        return Found(result.selection, result.threshold, result.passes, is_fallback, memo)
