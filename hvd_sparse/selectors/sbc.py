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
        if plus >= minus: send plus at the positive entries; otherwise -minus at the negative ones

    If fewer than k entries have the chosen sign, only these entries are sent. At the sent entries,
    the memory keeps accumulated - sent. The squared norm of the residual is then

        |accumulated|^2 - (sum of the sent entries' magnitudes)^2 / count

    Cost: for each sign, one pass that clears the entries of the other sign, and an exact top-k.

    Paper: sattler2019sbc.  Departs: at most k entries are sent, even if more are as large as the
    k-th, while the paper sends all entries that reach the k-th magnitude.
    """

    is_by_magnitude = False
    ignores = frozenset({"order", "scale"})
    needs_host = "works on an array on the host"
    changes_values = True

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
