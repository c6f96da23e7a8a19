from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, option
from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories.contract import Memory, Prepared, ResidualState
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@MEMORIES.register("low_pass")
@dataclass(frozen=True)
class LowPass(Memory):
    """Keep a residual to which each gradient is added only in part (a low-pass filter).

        accumulated = residual + gradient
        residual'   = (1 - beta) * residual + beta * (accumulated - sent)

    If an entry was not sent, its new residual is residual + beta * gradient. If it was sent
    exactly, its new residual is (1 - beta) * residual.

    Parameters
    ----------
    beta : float in (0, 1]; 1 is error feedback; the authors use 0.1 for large batches

    Notes
    -----
    For beta < 1 the sum of sent and kept entries is, by design, not the accumulated vector: a part
    of each sent entry stays in the residual, and only a part of each unsent gradient is added.

    State: two vectors per tensor, also without ``rollback``, because the filter needs both the
    residual and the accumulated vector. Cost: one pass to accumulate, and three to filter.

    Paper: chen2020scalecom.
    """

    beta: float = option(check_number, low=0, high=1, with_high=True)

    needs_host = "adds up vectors on the host"

    @property
    def conserves(self) -> bool:  # type: ignore[override]
        return self.beta == 1

    def create(self, spec: TensorSpec, *, rollback: bool) -> LowPassState:
        return LowPassState(spec, self.beta)


class LowPassState(ResidualState):
    def __init__(self, spec: TensorSpec, beta: float) -> None:
        super().__init__(spec, rollback=True)  # the filter reads the old residual
        self._beta = self.residual.old.dtype.type(beta)

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        # No aim, because the filter needs the accumulated vector with all its entries.
        return super().prepare(gradient, kernels)

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        new, old, beta = self.residual.new, self.residual.old, self._beta
        new[sent.indices] -= sent.values
        if beta != 1:
            new *= beta
            new += (1 - beta) * old
