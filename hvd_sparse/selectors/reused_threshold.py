from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, check_whole, option
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_at, aim_below
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, least_of
from hvd_sparse.types import Memo, Selection

HIGH, LOW = 5 / 4, 2 / 3


@SELECTORS.register("reused_threshold")
@dataclass(frozen=True)
class ReusedThreshold(DensitySelector):
    """Select the entries above a threshold that an exact top-k gave some steps ago.

        every ``period`` steps: exact top-k; the threshold is the smallest selected magnitude
        other steps: threshold *= drift after a step that sent more than 5/4 k entries,
                     threshold /= drift after a step that sent fewer than 2/3 k entries

    Parameters
    ----------
    period : number of steps from one exact top-k to the next, 1 or more
    drift : factor by which the threshold changes, 1 or more
    cap : 1 or more. If more than cap * k entries, or none, reach the threshold, top-k selects

    Notes
    -----
    Cost: in nearly every step, no extra pass over the tensor. The pass that adds the gradient to
    the residual also collects the entries that reach the threshold. For an exact top-k, the pass
    collects the entries that reach a value slightly below the last threshold, and the k largest of
    them are selected. If these are too few or too many, an exact top-k of the vector follows.

    Paper: li2022oktopk.  Departs: ``cap`` limits the number of entries; entries equal to the
    threshold are selected (``>=``), so that an exact top-k includes its k-th entry.
    """

    period: int = option(check_whole, 32, least=1)
    drift: float = option(check_number, 1.012, low=1, with_low=True)
    cap: float = option(check_number, 2.0, low=1, with_low=True)

    needs_host = ""

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        wanted, age = self.count(numel), Context(memo=memo).age
        if wanted == numel:
            return None
        if age >= self.period:
            return aim_below(warm, None, wanted, numel)
        return aim_at(warm, int(min(numel, self.cap * wanted)))

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        wanted, age, count = self.count(taken.numel), context.age, taken.count
        if age >= self.period:
            if count < wanted:
                return None
            return Cut(wanted, 1, threshold=least_of(taken) if count == wanted else None)
        if not count:
            return None
        return Cut(count, age + 1, threshold=self._drifted(aim.threshold, count, wanted))

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted = self.count(accumulated.size)
        period = 0 if wanted == accumulated.size else self.period
        most = int(min(accumulated.size, self.cap * wanted))
        found, passes = context.reused(accumulated, period, most)
        if found is None or found.threshold is None:
            selection = context.kernels.take_largest(accumulated, wanted)
            return Found(selection, least_of(selection), passes, memo=1)
        threshold = self._drifted(found.threshold, found.selection.count, wanted)
        return found._replace(threshold=threshold, memo=context.age + 1)

    def _drifted(self, threshold: float, count: int, wanted: int) -> float:
        if count > HIGH * wanted:
            return threshold * self.drift
        return threshold / self.drift if count < LOW * wanted else threshold
