"""Exact top-k: the yardstick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ...registry import SELECTORS
from ._base import Context, DensitySelector, Found


@SELECTORS.register("topk")
@dataclass(frozen=True)
class TopK(DensitySelector):
    """Keep exactly the k entries of largest magnitude.

        k = max(1, min(numel, floor(numel * density + 1e-9)))

    Parameters
    ----------
    density : float in (0, 1]

    Notes
    -----
    Fewer than k non-zeros: all of them.  Of equal magnitudes the lower index goes first.

    Cost: one selection (introselect, O(numel)) and three passes in the reference engine, one copy of the magnitudes.

    Paper: aji2017sparse.  Departs: k entries of each tensor rather than one threshold for all.
    """

    paper: ClassVar[str | None] = "aji2017sparse"
    is_exact: ClassVar[bool] = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        return Found(context.kernels.take_largest(accumulated, self.count(accumulated.size)))
