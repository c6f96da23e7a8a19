"""Base of the selectors whose selection is the exact top-k, however they find it."""

from __future__ import annotations

from typing import ClassVar

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.selectors._aim import Cut, aim_below, steer
from hvd_sparse.selectors.contract import Context, DensitySelector
from hvd_sparse.types import Memo, Selection


class ExactSelector(DensitySelector):
    """Selector of exactly the k largest entries.

    The k largest are among the entries that reach an aim wherever these are k or more.  So the pass
    that adds the gradient finds all that is needed in nearly every step, whatever a selector does
    in the others.
    """

    is_exact: ClassVar[bool] = True

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel)

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        count = self.count(taken.numel)
        if taken.count < count:
            return None
        return Cut(count, steer(context.memo, taken.count, count))
