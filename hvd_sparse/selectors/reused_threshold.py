"""Ok-Topk's local selection: an exact threshold now and then, used again in between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_cap, check_number, check_whole
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found

HIGH, LOW = 5 / 4, 2 / 3


@SELECTORS.register("reused_threshold")
@dataclass(frozen=True)
class ReusedThreshold(DensitySelector):
    """Keep what reaches the k-th largest magnitude of some steps ago, drifted.

        every ``period`` steps: exact top-k; the smallest magnitude taken is the threshold
        in between: threshold * drift after a step with more than 5/4 k entries, / drift after less
        than 2/3 k

    Parameters
    ----------
    density : float in (0, 1]
    period : steps from one exact selection to the next, 1 or more
    drift : factor, 1 or more
    cap : a step that would send more than cap * k entries, or none, is exact

    Notes
    -----
    Cost: an exact top-k every ``period`` steps; else one pass that takes entries, lost where the
    step turns exact.

    Paper: li2022oktopk.  Departs: ``cap``; ``>=`` keeps the k-th entry.
    """

    period: int = 32
    drift: float = 1.012
    cap: float = 2.0

    paper: ClassVar[str | None] = "li2022oktopk"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.period, "period of ReusedThreshold", 1)
        check_number(
            self.drift, "drift of ReusedThreshold", 1 - 1e-9, remedy="a factor of 1 or more"
        )
        check_cap(self.cap, "ReusedThreshold")

    @property
    def pass_limit(self) -> int:
        return 1

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted, age = self.count(accumulated.size), context.age
        if not context.warm or age >= self.period or wanted == accumulated.size:
            return self._exact(accumulated, wanted, context, 0)
        threshold = min(context.warm, float(np.finfo(accumulated.dtype).max))
        count, selection = context.kernels.take_at_most(
            accumulated, threshold, int(self.cap * wanted)
        )
        if not 0 < count <= self.cap * wanted:
            return self._exact(accumulated, wanted, context, 1)
        if selection.count > HIGH * wanted:
            threshold *= self.drift
        elif selection.count < LOW * wanted:
            threshold /= self.drift
        return Found(selection, threshold, memo=age + 1)

    def _exact(self, accumulated: np.ndarray, wanted: int, context: Context, passes: int) -> Found:
        selection = context.kernels.take_largest(accumulated, wanted)
        threshold = float(np.abs(selection.values).min()) if selection.count else None
        return Found(selection, threshold, passes, memo=1)
