from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Selection


@SELECTORS.register("chunk_max")
@dataclass(frozen=True)
class ChunkMax(DensitySelector):
    """Divide the tensor into chunks of ceil(numel / k) entries, and select the entry of largest
    magnitude in each chunk.

    k is the number of entries that the density gives. At most k entries are sent, one for each
    chunk that is not all zeros. If magnitudes in a chunk are equal, the first entry is selected.
    There is no search and no sort, but the entries are usually not the k largest of the tensor.

    Cost: one pass, and the allocation of a vector of zeros.

    Paper: chen2020scalecom.  Departs: one entry of each chunk is selected, while the paper also
    allows several entries per chunk.
    """

    is_by_magnitude = False
    ignores = frozenset({"scale", "signs"})
    needs_host = "works on an array on the host"

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        if not accumulated.size:
            return Found(Selection.empty(0, accumulated.dtype))
        length = -(-accumulated.size // self.count(accumulated.size))
        _, largest = context.kernels.take_bins(accumulated, np.zeros_like(accumulated), length)
        _, first = np.unique(largest.indices // length, return_index=True)
        return Found(
            Selection(largest.indices[first], largest.values[first], accumulated.size), passes=1
        )
