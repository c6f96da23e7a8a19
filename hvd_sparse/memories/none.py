from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories.contract import Accumulated, Memory, MemoryState, Prepared
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec


@MEMORIES.register("none")
@dataclass(frozen=True)
class NoMemory(Memory):
    """Keep no residual: the entries of a gradient that are not sent are lost.

    This memory suits methods whose sent vector equals the gradient on average (TernGrad), and
    baselines without a residual.

    State: none.  Cost: none.
    """

    keeps_rounding: ClassVar[bool] = False
    conserves: ClassVar[bool] = False
    needs_host: ClassVar[str] = "selects from the gradient itself, which the result overwrites"

    def create(self, spec: TensorSpec, *, rollback: bool) -> NoMemoryState:
        return NoMemoryState()


class NoMemoryState(MemoryState):
    _gradient: np.ndarray

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        self._gradient = gradient
        return Accumulated(gradient, kernels.moments(gradient))

    def take_all(self) -> np.ndarray:
        return self._gradient.copy()
