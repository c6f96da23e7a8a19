from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories.contract import Accumulated, Memory, MemoryState
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec


@MEMORIES.register("none")
@dataclass(frozen=True)
class NoMemory(Memory):
    """Send a part of every gradient and drop the rest.

    For methods that are unbiased by themselves (TernGrad), and as a baseline without a residual.
    The dropped entries are not kept, so nothing is conserved.

    State: none.  Cost: none.
    """

    keeps_rounding: ClassVar[bool] = False
    conserves = False  # type: ignore[assignment]
    needs_host = "selects from the gradient itself, which the result overwrites"  # type: ignore[assignment]

    def create(self, spec: TensorSpec, *, rollback: bool) -> NoMemoryState:
        return NoMemoryState()


class NoMemoryState(MemoryState):
    """Holds the gradient of the current step."""

    _gradient: np.ndarray

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        self._gradient = gradient
        return Accumulated(gradient, kernels.moments(gradient))

    def take_all(self) -> np.ndarray:
        return self._gradient.copy()
