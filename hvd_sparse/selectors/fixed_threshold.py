"""Fixed threshold: every entry above one magnitude, the same all through training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_density, check_number, check_truth, count_from_density
from hvd_sparse.core.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut
from hvd_sparse.selectors._candidates import take_bounded
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Memo, Selection


@SELECTORS.register("fixed_threshold")
@dataclass(frozen=True)
class FixedThreshold(Selector):
    """Keep what is at least ``threshold`` large; the count is whatever that gives.

    Parameters
    ----------
    threshold : float > 0, in units of the accumulated gradient
    max_density : float in (0, 1]: never more than this part of a tensor: beyond, the largest of it
    signs_only : send sign(x) * threshold instead of x; what is above stays and is sent again
        (Strom)

    Notes
    -----
    Minimises the total error over training rather than every step's.  At least the largest entry is
    sent, unless only signs are, of which one below the threshold would be wrong.

    Cost: none beside the pass that adds the gradient, while no more than ``max_density`` reach the
    threshold.

    Paper: sahu2021rethinking; with ``signs_only``, strom2015scalable.  Departs: the cap, and the
    floor of one entry.
    """

    threshold: float
    max_density: float = 0.1
    signs_only: bool = False

    paper: ClassVar[str | None] = "sahu2021rethinking"
    ignores: ClassVar[frozenset[str]] = frozenset({"order", "signs"})

    def __post_init__(self) -> None:
        check_number(self.threshold, "threshold of FixedThreshold", 0)
        check_density(self.max_density, "max_density of FixedThreshold")
        check_truth(self.signs_only, "signs_only of FixedThreshold")

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        most = count_from_density(accumulated.size, self.max_density)
        moments = context.moments_of(accumulated)
        if not self.signs_only:
            return take_bounded(accumulated, self.threshold, most, moments, context, 0)
        if moments.abs_max < self.threshold:
            return Found(Selection.empty(accumulated.size, accumulated.dtype), self.threshold)
        found = take_bounded(accumulated, self.threshold, most, moments, context, 0)
        kept = found.selection
        signs = np.copysign(accumulated.dtype.type(self.threshold), kept.values)
        return Found(
            Selection(kept.indices, signs, kept.numel),
            self.threshold,
            is_fallback=found.is_fallback,
        )

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return (
            None
            if self.signs_only
            else Aim(self.threshold, count_from_density(numel, self.max_density))
        )

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        return Cut(taken.count) if taken.count else None

    @property
    def changes_values(self) -> bool:
        return self.signs_only
