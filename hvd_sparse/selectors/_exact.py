"""Base of the selectors whose selection is the exact top-k, however they find it."""

from __future__ import annotations

from typing import ClassVar

from hvd_sparse.kernels.contract import Aim
from hvd_sparse.selectors._aim import aim_below
from hvd_sparse.selectors._search import Band
from hvd_sparse.selectors.contract import DensitySelector
from hvd_sparse.types import Memo


class ExactSelector(DensitySelector):
    """Selector of exactly the k largest entries.

    The k largest are among the entries that reach an aim wherever these are k or more.  So the pass
    that adds the gradient finds all that is needed in nearly every step, whatever a selector does
    in the others.
    """

    is_exact: ClassVar[bool] = True

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel)

    def band(self, numel: int) -> Band | None:
        count = self.count(numel)
        return Band(count, count, count)
