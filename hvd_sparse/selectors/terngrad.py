from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, check_whole, option
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection


@SELECTORS.register("terngrad")
@dataclass(frozen=True)
class TernGrad(Selector):
    """Send sign(x_j) * s with probability |x_j| / s, and otherwise nothing.

        x = accumulated, clipped to [-c, c] with c = clip * std(accumulated);  s = max(|x|)

    Parameters
    ----------
    clip : float > 0, bound of the entries in standard deviations; None for no clipping
    seed : seed of the random numbers

    Notes
    -----
    The expectation of the sent vector is the clipped gradient, so no residual is needed
    (``memory="none"``). Random numbers depend only on the seed, the tensor, the step and the rank.

    Cost: two passes, and one random number per entry.

    Paper: wen2017terngrad.  Departs: every rank has its own s, while in the paper all ranks use the
    largest s of all ranks.
    """

    clip: float | None = 2.5
    seed: int = option(check_whole, 0, least=0)

    needs_rng = True
    is_unbiased = True
    is_by_magnitude = False
    ignores = frozenset({"scale"})
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"
    changes_values = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip is not None:
            check_number(self.clip, "clip of TernGrad", 0)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        scale = context.moments_of(accumulated).abs_max
        if self.clip is not None:
            scale = min(scale, self.clip * context.kernels.mean_and_std(accumulated)[1] or scale)
        candidates = context.kernels.take_at_least(accumulated, 0.0)
        drawn = context.random().random(candidates.count) * scale < np.abs(candidates.values)
        values = np.copysign(accumulated.dtype.type(scale), candidates.values[drawn])
        return Found(Selection(candidates.indices[drawn], values, accumulated.size))
