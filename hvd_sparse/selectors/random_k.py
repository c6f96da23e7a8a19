from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_truth, check_whole, option
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Selection


@SELECTORS.register("random_k")
@dataclass(frozen=True)
class RandomK(DensitySelector):
    """Select k entries at positions that are drawn uniformly, without replacement.

    Parameters
    ----------
    shared_seed : draw the same positions on all ranks, so that no indices are sent
    seed : seed of the random positions

    Notes
    -----
    The values are not multiplied by numel / k, because error feedback requires that the error is
    smaller than the vector: E|x - sent|^2 = (1 - k / numel) |x|^2. Exact zeros at the drawn
    positions are sent too, so that with ``shared_seed`` all ranks send the same positions. The
    positions depend only on the seed, the tensor, the step and, without ``shared_seed``, the rank.

    Cost: O(k) if k is small compared with numel.

    Paper: stich2018sparsified.
    """

    shared_seed: bool = option(check_truth, False)
    seed: int = option(check_whole, 0, least=0)

    needs_rng = True
    is_by_magnitude = False
    ignores = frozenset({"scale", "signs"})
    needs_host = ""

    @property
    def has_shared_indices(self) -> bool:  # type: ignore[override]
        return self.shared_seed

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        drawn = context.random().choice(
            accumulated.size, self.count(accumulated.size), replace=False, shuffle=False
        )
        indices = np.sort(drawn).astype(np.uint32)
        return Found(Selection(indices, accumulated[indices], accumulated.size))
