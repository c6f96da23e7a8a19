"""No memory: unsent entries are forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.kernels.contract import Aim, Kernels
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import Selection, TensorSpec


@MEMORIES.register("none")
@dataclass(frozen=True)
class NoMemory:
    """Send a part of every gradient and drop the rest.

    For methods that are unbiased by themselves (TernGrad), and as a baseline without a residual. It
    does not conserve.

    State: none.  Cost: none.
    """

    paper: ClassVar[str | None] = None
    conserves: ClassVar[bool] = False
    keeps_rounding: ClassVar[bool] = False
    adds_gradient: ClassVar[bool] = True
    finishes: ClassVar[bool] = False
    counts_votes: ClassVar[bool] = False
    needs_host: ClassVar[str] = "selects from the gradient itself, which the result overwrites"

    def create(self, spec: TensorSpec, *, rollback: bool) -> NoMemoryState:
        return NoMemoryState()


class NoMemoryState:
    """The last gradient, as long as its step.  Implements ``MemoryState``."""

    _gradient: np.ndarray

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        self._gradient = gradient
        return Accumulated(gradient, kernels.moments(gradient))

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        pass

    def take_all(self) -> np.ndarray:
        return self._gradient.copy()

    def commit(self) -> None:
        pass

    def roll_back(self) -> None:
        pass

    def add(self, returned: Selection) -> None:
        pass

    def arrays(self) -> dict[str, np.ndarray]:
        return {}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        pass
