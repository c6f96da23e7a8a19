from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_choice, check_truth, check_whole, count_from_density, option
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import AIM, Band, aim_below
from hvd_sparse.selectors._search import STEPS, band_around, check_tolerance, search_threshold
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.selectors.ldte import laplace_threshold
from hvd_sparse.types import Memo


@SELECTORS.register("ldte_bs")
@dataclass(frozen=True)
class LdteBs(DensitySelector):
    """Select about k entries above a threshold that is estimated with a Laplace distribution, then
    corrected by counting.

        first threshold: t = mean(|accumulated|) * ln(numel / k), or near the previous threshold
        repeat: count the entries with |accumulated| >= t, and stop if low * k <= count <= high * k;
                otherwise choose the next t between a threshold with too many entries and one with
                too few (the bracket)

    Parameters
    ----------
    search : how the next threshold is chosen: "log_count" interpolates the logarithm of the count
        between the ends of the bracket; "bisection" halves the bracket
    tolerance : (low, high) in the formulas above, with 0 < low <= 1 <= high
    max_passes : largest number of counts, in the whole vector or in a list of its large entries; if
        none of them lies inside the tolerance, exact top-k selects
    warm_start : start the search just below the threshold of the tensor's previous step

    Notes
    -----
    The paper states: fit a Laplace distribution to the residual gradient, read the top-k threshold
    off the distribution, and correct the threshold by binary search, without sampling or sorting.
    We had no access to the paper's details. The following is our derivation: the first threshold in
    closed form (maximum likelihood, location 0), the bracket [0, max], the tolerance, the limit on
    counts, the interpolation, the warm start, the list of large entries, and the conditions that
    end the search.

    Exact top-k selects k entries if no other threshold fits into the bracket, or ``max_passes`` is
    reached. It also selects if two counts equal those at the ends of the bracket, for example
    because magnitudes are equal. The number of selected entries is therefore always inside the
    tolerance, or exactly min(k, non-zeros).

    Cost: in nearly every step, no extra pass over the tensor. The pass that adds the gradient to
    the residual also collects the entries whose magnitudes reach a value slightly below the
    previous step's threshold. If these are more than the tolerance allows, the k largest of them
    are selected. In other steps, for example the first, every count is a pass over the tensor,
    until few entries, at most 16 k, reach a threshold; later counts read only these
    (docs/results/selecting.md).

    Paper: chen2021ldte.  Departs: ``search="bisection", warm_start=False`` is closest to the
    paper's text; the defaults need fewer passes for the same guarantee.
    """

    search: str = option(check_choice, "log_count", choices=STEPS)
    tolerance: tuple[float, float] = option(check_tolerance, (0.8, 1.3))
    max_passes: int = option(check_whole, 16, least=1)
    warm_start: bool = option(check_truth, True)

    needs_host = ""

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        if not self.warm_start:
            return None
        return aim_below(warm, memo, count_from_density(numel, self.share), numel)

    def band(self, numel: int) -> Band | None:
        return band_around(count_from_density(numel, self.share), self.tolerance, numel)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kernels, miss = context.kernels, context.miss
        count = self.count(accumulated.size)
        moments = context.moments_of(accumulated)
        band = band_around(count, self.tolerance, accumulated.size)
        if moments.nonzeros <= band.most:
            # All non-zeros are selected, so no search is needed.
            return Found(kernels.take_at_least(accumulated, 0.0), context.warm, memo=context.memo)
        known, warm = None, context.warm if self.warm_start else None
        if miss:  # the number of candidates narrows the bracket without another pass
            first, known = miss.retry, miss.known
        else:
            first = AIM * warm if warm else laplace_threshold(moments, count)
        found = search_threshold(
            accumulated, first, band, moments, kernels, self.search, self.max_passes, known
        )
        return found._replace(memo=context.margin_for(band.least))
