from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_choice, check_truth, check_whole, count_from_density
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import AIM, aim_below
from hvd_sparse.selectors._search import STEPS, Band, band_around, is_tolerance, search_threshold
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.selectors.ldte import laplace_threshold
from hvd_sparse.types import Memo


@SELECTORS.register("ldte_bs")
@dataclass(frozen=True)
class LdteBs(DensitySelector):
    """Select about k entries above a threshold from a fitted Laplace distribution, which is
    corrected by counting.

        t0 = mean(|accumulated|) * ln(numel / k)
        repeat: count(|accumulated| >= t); stop inside [low * k, high * k]; else narrow the bracket

    Parameters
    ----------
    search : "log_count" interpolates the logarithm of the count inside the bracket; "bisection"
        halves the bracket
    tolerance : (low, high) with 0 < low <= 1 <= high: the search ends if count / k lies between
        them
    max_passes : largest number of counts, over the vector or among candidates, after which exact
        top-k selects among the candidates
    warm_start : start the search just below the tensor's last threshold

    Notes
    -----
    The paper states: fit a Laplace distribution to the residual gradient, read the top-k threshold
    off it, and correct it by binary search, without sampling or sorting. We had no access to the
    paper's text on the details, and derived: t0 in closed form (maximum likelihood, location 0),
    the bracket [0, max], the tolerance, the limit on counts, the interpolation, the warm start, the
    search among candidates, and a search that always ends.

    If the bracket closes, ``max_passes`` is reached or two counts do not narrow the bracket (ties,
    spikes), exact top-k selects k entries. The number of selected entries is therefore always
    inside the tolerance, or exactly min(k, non-zeros).

    Cost: in nearly every step no pass besides the one that adds the gradient, which also collects
    entries slightly smaller than the last threshold; if there are more than the tolerance allows,
    the k largest are kept. Otherwise, for example on the first step, one pass per count and one to
    take the entries. Once at most 16 k entries reach a threshold, the search continues among these
    (docs/results/selecting.md).

    Paper: chen2021ldte.  Departs: ``search="bisection", warm_start=False`` is closest to the
    paper's text; the defaults need fewer passes for the same guarantee.
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
        if miss:  # the aim's count narrows the bracket at no cost
            first, known = miss.retry, miss.known
        else:
            first = AIM * warm if warm else laplace_threshold(moments, count)
        result = search_threshold(
            accumulated, first, band, moments, kernels, self.search, self.max_passes, known
        )
        memo, is_fallback = context.margin_for(band.least), not result.converged
        return Found(result.selection, result.threshold, result.passes, is_fallback, memo)
