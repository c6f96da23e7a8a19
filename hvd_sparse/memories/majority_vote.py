from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.memories.contract import Memory
from hvd_sparse.memories.none import NoMemoryState
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec


@MEMORIES.register("majority_vote")
@dataclass(frozen=True)
class MajorityVote(Memory):
    """Keep no residual, and give the optimizer the sign that most ranks have sent.

        applied_j = sign(sum over the ranks of sent_j)

    A tie gives 0. For tensors that are never compressed, the optimizer gets the sign of the summed
    gradient, so that one learning rate suits all tensors.

    State: none.  Cost: one pass over the sum.

    Paper: bernstein2019majority.  Departs: every rank gathers and counts all votes, while the paper
    has a server for this; a tie gives 0, while the paper excludes ties by an odd number of workers.
    """

    keeps_rounding: ClassVar[bool] = False
    adds_gradient: ClassVar[bool] = False
    finishes: ClassVar[bool] = True
    counts_votes: ClassVar[bool] = True
    conserves: ClassVar[bool] = False
    needs_host: ClassVar[str] = "adds up vectors on the host"

    def create(self, spec: TensorSpec, *, rollback: bool) -> MajorityVoteState:
        return MajorityVoteState()


class MajorityVoteState(NoMemoryState):
    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the signs of ``reduced``: the sum or average of the ranks' votes or, for a tensor
        that is never compressed, of their gradients. A tie of the votes gives 0."""
        signs: np.ndarray = np.sign(reduced)
        if is_compressed:
            # In an average, votes of 1 / world_size are rounded, so less than half a vote is a tie.
            half = 0.5 / self.world_size if self.is_average else 0.5
            signs[np.abs(reduced) < half] = 0
        return signs
