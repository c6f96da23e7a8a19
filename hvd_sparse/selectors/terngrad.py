"""TernGrad's selection: -s, 0 or s, drawn so that the mean is right."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_number, check_whole
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection


@SELECTORS.register("terngrad")
@dataclass(frozen=True)
class TernGrad(Selector):
    """Send sign(x_j) * s with probability |x_j| / s, else nothing.

        x = accumulated, clipped at clip * std(accumulated);  s = max(|x|)

    Parameters
    ----------
    clip : float > 0, in standard deviations; None does not clip
    seed : of the draws

    Notes
    -----
    Unbiased for the clipped gradient, so it goes with ``memory="none"``.
    The draw depends on seed, tensor, step and rank alone.

    Cost: two passes and one random number an entry.

    Paper: wen2017terngrad.  Departs: every rank has its own s, where the paper shares the largest.
    """

    clip: float | None = 2.5
    seed: int = 0

    paper: ClassVar[str | None] = "wen2017terngrad"
    needs_rng: ClassVar[bool] = True
    is_unbiased: ClassVar[bool] = True
    is_by_magnitude: ClassVar[bool] = False
    ignores: ClassVar[frozenset[str]] = frozenset({"scale"})
    needs_host: ClassVar[str] = (
        "sends a value for every entry, so that the whole tensor would travel"
    )

    def __post_init__(self) -> None:
        if self.clip is not None:
            check_number(self.clip, "clip of TernGrad", 0)
        check_whole(self.seed, "seed of TernGrad", 0)

    @property
    def changes_values(self) -> bool:
        return True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        scale = context.moments_of(accumulated).abs_max
        if self.clip is not None:
            scale = min(scale, self.clip * context.kernels.mean_and_std(accumulated)[1] or scale)
        candidates = context.kernels.take_at_least(accumulated, 0.0)
        drawn = context.random().random(candidates.count) * scale < np.abs(candidates.values)
        values = np.copysign(accumulated.dtype.type(scale), candidates.values[drawn])
        return Found(Selection(candidates.indices[drawn], values, accumulated.size))
