from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, Found, Selector
from hvd_sparse.types import Selection


@SELECTORS.register("sign_vote")
@dataclass(frozen=True)
class SignVote(Selector):
    """Send the sign of every non-zero entry, +1 or -1, as a vote for memory ``majority_vote``.

    Exact zeros do not vote. Cost: one pass to write the signs.

    Paper: bernstein2019majority.
    """

    sends_votes = True
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kept = context.kernels.take_at_least(accumulated, 0.0)
        votes = np.copysign(accumulated.dtype.type(1), kept.values)
        return Found(Selection(kept.indices, votes, kept.numel))
