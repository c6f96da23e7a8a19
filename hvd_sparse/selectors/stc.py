from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, ExactSelector, Found, least_of
from hvd_sparse.types import Selection


@SELECTORS.register("stc")
@dataclass(frozen=True)
class Stc(ExactSelector):
    """Select the k largest entries, and send the sign of each, times their mean magnitude.

        sent_j = sign(accumulated_j) * mean(|accumulated| over the k entries)

    The memory keeps accumulated - sent at the sent entries. The squared norm of the residual is
    then |accumulated|^2 - (sum of the sent entries' magnitudes)^2 / k.

    Cost: that of ``topk``, and one pass over the k entries.

    Paper: sattler2019stc.
    """

    needs_host = ""
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        count = self.count(accumulated.size)
        kept = context.kernels.take_largest(accumulated, count)
        memo = context.margin_for(count)
        return Found(self.as_sent(kept), least_of(kept), memo=memo)

    def as_sent(self, kept: Selection) -> Selection:
        mean = np.abs(kept.values).mean(dtype=np.float64) if kept.count else 0.0
        values = np.copysign(kept.values.dtype.type(mean), kept.values)
        return Selection(kept.indices, values, kept.numel)
