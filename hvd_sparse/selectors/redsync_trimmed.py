"""RedSync's trimmed top-k: discard the many small entries, then select exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._candidates import least_of
from hvd_sparse.selectors._exact import ExactSelector
from hvd_sparse.selectors.contract import Context, Found


@SELECTORS.register("redsync_trimmed")
@dataclass(frozen=True)
class RedsyncTrimmed(ExactSelector):
    """Keep exactly the k largest entries, chosen among those above a coarse cut.

        cut = mean(|x|) + r * (max(|x|) - mean(|x|))
        r = 1 - step, 1 - 2 * step, ... until k entries reach the cut

    Parameters
    ----------
    density : float in (0, 1]
    step : float in (0, 1): how much lower every further cut is

    Notes
    -----
    The selection is that of ``topk``. Below r = 0 the cut is 0, so the search ends whatever the
    data.

    Cost: none beside the pass that adds the gradient in nearly every step, as for ``topk``; exact
    top-k of the whole where that took too little or too much.  At the first step one pass for the
    moments, one a cut, one to take the candidates, exact top-k on these.

    Paper: fang2019redsync.  Departs: from a widely copied code that sends all survivors, up to
    hundreds of times k.
    """

    step: float = 0.2

    paper: ClassVar[str | None] = "fang2019redsync"
    needs_host: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.step, "step of RedsyncTrimmed", 0, 1)

    @property
    def pass_limit(self) -> int:
        return math.ceil(1 / self.step)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted, passes = self.count(accumulated.size), 0
        if context.miss is not None:  # cuts would want moments, which that pass did not find
            selection = context.kernels.take_largest(accumulated, wanted)
        else:
            coarse, passes = self._coarse_cut(accumulated, wanted, context)
            _, selection = context.kernels.take_at_most(accumulated, coarse, wanted)
        memo = context.margin_for(wanted)
        return Found(selection, least_of(selection), passes, memo=memo)

    def _coarse_cut(
        self, accumulated: np.ndarray, wanted: int, context: Context
    ) -> tuple[float, int]:
        """Return the first cut that enough entries reach, and the passes that it took."""
        moments = context.moments_of(accumulated)
        ratio, passes, cut = 1.0, 0, 0.0
        while moments.nonzeros > wanted:
            ratio -= self.step
            cut = (
                moments.abs_mean + ratio * (moments.abs_max - moments.abs_mean)
                if ratio > 0
                else 0.0
            )
            if cut <= 0.0:
                break
            passes += 1
            if context.kernels.count_at_least(accumulated, cut) >= wanted:
                break
        return cut, passes
