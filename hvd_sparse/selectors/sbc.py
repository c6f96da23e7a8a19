from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Selection


@SELECTORS.register("sbc")
@dataclass(frozen=True)
class Sbc(DensitySelector):
    """Select the k largest positive or the k most negative entries, and send their mean.

        plus  = mean of the k largest positive entries
        minus = mean of the magnitudes of the k most negative entries
        if plus >= minus: send plus at the positive entries; else -minus at the negative ones

    If fewer than k entries have the chosen sign, only these are sent. Memories keep accumulated -
    sent at the sent entries, so that |accumulated - sent|^2 = |accumulated|^2 - (sum of the sent
    entries' magnitudes)^2 / count. Cost: that of ``topk`` twice, each after a pass that clears the
    entries of the other sign.

    Paper: sattler2019sbc.  Departs: if several entries are as large as the k-th, only as many as
    make k are sent, while the paper's comparison with a threshold sends all of them.
    """

    paper = "sattler2019sbc"
    is_by_magnitude = False
    ignores = frozenset({"order", "scale"})
    needs_host = "works on an array on the host"
    changes_values = True
    pass_limit = 1  # for the sign that is not sent

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        count, sides = self.count(accumulated.size), []
        for clear in (np.maximum, np.minimum):
            kept = context.kernels.take_largest(clear(accumulated, 0), count)
            mean = float(kept.values.mean(dtype=np.float64)) if kept.count else 0.0
            sides.append((kept, mean))
        (plus, above), (minus, below) = sides
        kept, mean = (plus, above) if above >= -below else (minus, below)
        values = np.full(kept.count, mean, accumulated.dtype)
        return Found(Selection(kept.indices, values, kept.numel), passes=1)
