"""RedSync's trimmed top-k: discard the many small entries, then select exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found


@SELECTORS.register("redsync_trimmed")
@dataclass(frozen=True)
class RedsyncTrimmed(DensitySelector):
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

    Cost: one pass for the moments, one a cut, one to take the candidates, exact top-k on these.

    Paper: fang2019redsync.  Departs: from a widely copied code that sends all survivors, up to
    hundreds of times k.
    """

    step: float = 0.2

    paper: ClassVar[str | None] = "fang2019redsync"
    is_exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.step, "step of RedsyncTrimmed", 0, 1)

    @property
    def pass_limit(self) -> int:
        return math.ceil(1 / self.step)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        moments = context.moments_of(accumulated)
        wanted = self.count(accumulated.size)
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
        _, selection = context.kernels.take_at_most(accumulated, cut, wanted)
        return Found(selection, cut, passes)
