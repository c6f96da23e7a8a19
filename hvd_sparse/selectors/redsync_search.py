from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_whole, option
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_at
from hvd_sparse.selectors._search import band_around, search_threshold
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Memo, Selection


@SELECTORS.register("redsync_search")
@dataclass(frozen=True)
class RedsyncSearch(DensitySelector):
    """Select k to 2k entries above a threshold that is found by bisection.

        first threshold: halfway between mean(|x|) and max(|x|)
        then bisection of [0, max(|x|)] until k <= count <= 2k

    Parameters
    ----------
    reuse_steps : number of steps, after a search, that use the found threshold again
    max_passes : largest number of passes; if the search has not ended by then, exact top-k selects

    Notes
    -----
    If no entry or more than 2k entries reach a reused threshold, a new threshold is searched.

    Cost: one pass for the moments, one per bisection, and one to take the entries. A step that uses
    a threshold again needs no extra pass over the tensor. The pass that adds the gradient to the
    residual then also collects the entries that reach the threshold.

    Paper: fang2019redsync.  Departs: the bisection starts at 0, while the paper's starts at the
    mean, and ends with few entries if fewer than k reach the mean. A widely copied implementation
    raises the threshold if too few entries reach it; here the threshold is lowered. We do not know
    for how many steps the paper uses a threshold again.
    """

    reuse_steps: int = option(check_whole, 5, least=0)
    max_passes: int = option(check_whole, 16, least=1)

    tolerance = (1.0, 2.0)
    needs_host = ""

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        is_due = Context(memo=memo).age >= self.reuse_steps
        return None if is_due else aim_at(warm, 2 * self.count(numel))

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        return Cut(taken.count, context.age + 1) if taken.count else None

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kernels, wanted = context.kernels, self.count(accumulated.size)
        found, passes = context.reused(accumulated, self.reuse_steps, 2 * wanted)
        if found is not None:
            return found._replace(threshold=context.warm, memo=context.age + 1)
        moments = context.moments_of(accumulated)
        band = band_around(wanted, self.tolerance, accumulated.size)
        if moments.nonzeros <= band.most:
            return Found(kernels.take_at_least(accumulated, 0.0), passes=passes)
        middle = 0.5 * (moments.abs_mean + moments.abs_max)
        most = self.max_passes - passes
        found = search_threshold(accumulated, middle, band, moments, kernels, "bisection", most)
        found = found._replace(passes=passes + found.passes)
        # A threshold that the search did not find is not used again.
        return found._replace(threshold=None) if found.is_fallback else found._replace(memo=0)
