"""RedSync's threshold binary search, whose threshold is used again for some steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_whole
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_at
from hvd_sparse.selectors._search import band_around, search_threshold
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Memo, Selection


@SELECTORS.register("redsync_search")
@dataclass(frozen=True)
class RedsyncSearch(DensitySelector):
    """Keep k to 2k entries above a threshold searched by bisection between mean and maximum.

        threshold = mean(|x|) + m * (max(|x|) - mean(|x|)),  m by bisection until k <= count <= 2k

    The search runs every few steps only.

    Parameters
    ----------
    density : float in (0, 1]
    reuse_steps : steps for which a threshold found is used again without counting
    max_passes : passes after which exact top-k on the candidates decides

    Notes
    -----
    A threshold that is used again is dropped when it selects nothing, or more than 2k entries.
    Below the mean the search goes on down to 0, where the paper's ends and takes what it has.

    Cost: one pass for the moments, one a halving, one to take the entries.  When reusing, none
    beside the pass that adds the gradient, which takes what reaches the threshold.

    Paper: fang2019redsync.  Departs: from a widely copied code that raises the threshold where too
    few entries reach it; the number of steps of reuse is not known to us.
    """

    reuse_steps: int = 5
    max_passes: int = 16

    paper: ClassVar[str | None] = "fang2019redsync"
    tolerance: ClassVar[tuple[float, float]] = (1.0, 2.0)
    needs_host: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.reuse_steps, "reuse_steps of RedsyncSearch", 0)
        check_whole(self.max_passes, "max_passes of RedsyncSearch", 1)

    @property
    def pass_limit(self) -> int:
        return self.max_passes

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        is_due = Context(memo=memo).age >= self.reuse_steps
        return None if is_due else aim_at(warm, 2 * self.count(numel))

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        return Cut(taken.count, context.age + 1) if taken.count else None

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted, age, miss = self.count(accumulated.size), context.age, context.miss
        if not context.warm or age >= self.reuse_steps:
            return self._search(accumulated, wanted, context, 0)
        if miss is not None and miss.is_sure:  # the pass that added the gradient counted them
            return self._search(accumulated, wanted, context, 1)
        threshold = min(context.warm, float(np.finfo(accumulated.dtype).max))
        count, selection = context.kernels.take_at_most(accumulated, threshold, 2 * wanted)
        if 0 < count <= 2 * wanted:
            return Found(selection, context.warm, memo=age + 1)
        return self._search(accumulated, wanted, context, 1)

    def _search(self, accumulated: np.ndarray, wanted: int, context: Context, passes: int) -> Found:
        kernels = context.kernels
        moments = context.moments_of(accumulated)
        band = band_around(wanted, self.tolerance)
        if moments.nonzeros <= band.most:
            return Found(kernels.take_at_least(accumulated, 0.0), passes=passes)
        middle = 0.5 * (moments.abs_mean + moments.abs_max)
        most = self.max_passes - passes
        result = search_threshold(accumulated, middle, band, moments, kernels, "bisection", most)
        passes += result.passes
        if result.converged:
            return Found(result.selection, result.threshold, passes, memo=0)
        return Found(result.selection, None, passes, is_fallback=True)
