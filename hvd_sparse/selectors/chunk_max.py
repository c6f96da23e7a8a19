from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Selection


@SELECTORS.register("chunk_max")
@dataclass(frozen=True)
class ChunkMax(DensitySelector):
    """Select the largest entry of each of k chunks of ceil(numel / k) entries.

    At most k entries are sent, because a chunk of zeros sends nothing. If magnitudes in a chunk are
    equal, the first entry is selected. No search or sort is needed, but the selection is not the
    top k. Cost: one pass, and a vector of zeros.

    Paper: chen2020scalecom.  Departs: one entry per chunk, while the paper also allows several.
    """

    paper = "chen2020scalecom"
    is_by_magnitude = False
    ignores = frozenset({"scale", "signs"})
    needs_host = "works on an array on the host"
    pass_limit = 1

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        if not accumulated.size:
            return Found(Selection.empty(0, accumulated.dtype))
        length = -(-accumulated.size // self.count(accumulated.size))
        _, largest = context.kernels.take_bins(accumulated, np.zeros_like(accumulated), length)
        _, first = np.unique(largest.indices // length, return_index=True)
        return Found(
            Selection(largest.indices[first], largest.values[first], accumulated.size), passes=1
        )
