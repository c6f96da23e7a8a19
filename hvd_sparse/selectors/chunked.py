from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_whole, option
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Selection


@SELECTORS.register("chunked")
@dataclass(frozen=True)
class Chunked(DensitySelector):
    """Select whole chunks of consecutive entries: those with the largest L1 norms.

    Parameters
    ----------
    density : fraction of the chunks to send, in (0, 1]: max(1, floor(chunks * density)) chunks
    chunk_length : entries per chunk; the last chunk may be shorter

    Notes
    -----
    If norms are equal, the chunk with the lower indices is selected first.  Exact zeros in a
    selected chunk are sent too. With exchange ``shared_index``, the norms are first summed over all
    ranks, so that all ranks select the same chunks and send no indices.

    Cost: one pass to compute the norms, and one copy of the selected chunks.

    Paper: sun2019csc.  Departs: with other exchanges, every rank selects chunks by its own norms,
    and sends their indices.
    """

    chunk_length: int = option(check_whole, 512, least=1)

    is_by_magnitude = False
    ignores = frozenset({"scale", "signs"})
    sums_statistics = True
    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        return self.find_by(
            self.measure(accumulated, context.kernels), accumulated, context.kernels
        )

    def measures(self, numel: int) -> int:
        return -(-numel // self.chunk_length)

    def measure(self, accumulated: np.ndarray, kernels: Kernels) -> np.ndarray:
        """Return the L1 norms of the chunks, [chunks] in the vector's dtype."""
        return kernels.chunk_norms(accumulated, min(self.chunk_length, accumulated.size or 1))

    def find_by(self, statistics: np.ndarray, accumulated: np.ndarray, kernels: Kernels) -> Found:
        chosen = kernels.take_largest(statistics, self.count(statistics.size)).indices
        length = min(self.chunk_length, accumulated.size)
        starts = chosen.astype(np.int64) * length
        indices: np.ndarray = (starts[:, None] + np.arange(length)).reshape(-1)
        indices = indices[indices < accumulated.size].astype(np.uint32)
        return Found(Selection(indices, accumulated[indices], accumulated.size), passes=1)
