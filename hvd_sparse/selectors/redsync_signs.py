from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_truth, option
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.selectors.redsync_search import RedsyncSearch
from hvd_sparse.selectors.redsync_trimmed import RedsyncTrimmed
from hvd_sparse.types import Selection


@SELECTORS.register("redsync_signs")
@dataclass(frozen=True)
class RedsyncSigns(DensitySelector):
    """Select the largest positive entries on one step, and the most negative entries on the next.

        side = max(accumulated, 0) on even steps of a tensor, min(accumulated, 0) on odd steps
        sent_j = mean(side over the selected entries)

    Parameters
    ----------
    search : select k to 2k entries by ``redsync_search``, not exactly k by ``redsync_trimmed``

    Notes
    -----
    The memory keeps accumulated - sent at the sent entries. All sent values of a tensor are equal,
    so codec ``sign_index`` sends them exactly.

    Cost: that of ``redsync_search`` or ``redsync_trimmed``, and one pass that writes ``side``.

    Paper: fang2019redsync.  Departs: a threshold is not used again, because the next step selects
    the other sign; the values of the output layer are averaged like those of all other layers.
    """

    search: bool = option(check_truth, False)

    is_by_magnitude = False
    ignores = frozenset({"order", "scale"})
    needs_host = "works on an array on the host"
    changes_values = True

    @property
    def _inner(self) -> RedsyncSearch | RedsyncTrimmed:
        if self.search:
            return RedsyncSearch(self.share, reuse_steps=0)
        return RedsyncTrimmed(self.share)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        is_negative = context.age % 2 == 1
        side = (np.minimum if is_negative else np.maximum)(accumulated, 0)
        # The context's moments and threshold are of the whole vector, so they are not used.
        found = self._inner.find(side, Context(kernels=context.kernels))
        kept = found.selection
        mean = kept.values.mean(dtype=np.float64) if kept.count else 0.0
        values = np.full_like(kept.values, mean)
        return Found(
            Selection(kept.indices, values, kept.numel),
            passes=found.passes,
            is_fallback=found.is_fallback,
            memo=float(not is_negative),
        )
