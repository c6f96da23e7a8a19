"""What a memory is: the state of one tensor between its steps."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from hvd_sparse.core.kernels.contract import Aim, Kernels, Moments, Taking
from hvd_sparse.types import Selection, TensorSpec


class Accumulated(NamedTuple):
    """What there is to select from in a step.

    Attributes
    ----------
    vector : what was kept back, with this gradient; +0.0 where an entry was taken
    moments : of all of it; None where the pass had an aim
    taking : what that pass brought back; None where it had none
    added : what this step added to what was kept back; None where that is the gradient itself
    """

    vector: np.ndarray
    moments: Moments | None
    taking: Taking | None = None
    added: np.ndarray | None = None

    @property
    def is_finite(self) -> bool:
        """Whether all of it is a number."""
        return (
            not self.taking.nonfinite
            if self.taking is not None
            else self.moments is None or self.moments.is_finite
        )


def accumulate(
    gradient: np.ndarray,
    residual: np.ndarray,
    out: np.ndarray,
    aim: Aim | None,
    kernels: Kernels | ModuleType,
) -> Accumulated:
    """residual + gradient into ``out``, by the pass that does as much along with it as is asked
    for."""
    if aim is None:
        return Accumulated(out, kernels.accumulate(gradient, residual, out), added=gradient)
    taking = kernels.accumulate_and_take(gradient, residual, out, aim)
    return Accumulated(out, None, taking, added=gradient)


def limited(gradient: np.ndarray, limit: float) -> np.ndarray:
    """Return the gradient, rescaled to a norm of ``limit`` where it is longer."""
    norm = math.sqrt(float(np.dot(gradient, gradient.astype(np.float64))))
    return gradient if norm <= limit else gradient * gradient.dtype.type(limit / norm)


def clip_limit(clip_norm: float, world_size: int, *, is_average: bool) -> float:
    """Return the bound of one rank's gradient under which N independent ones together keep to
    ``clip_norm``.

    Their sum is sqrt(N) times as long as each, their average 1/sqrt(N) times.
    """
    root = math.sqrt(world_size)
    return clip_norm * root if is_average else clip_norm / root


class MemoryState(Protocol):
    """The state of one tensor.  A step writes its new version; ``commit`` keeps it, ``roll_back``
    drops it.

    step : completed steps of the tensor, set before each
    is_average : the ranks' gradients are averaged, not summed; set before each step
    """

    step: int
    is_average: bool

    def compensate(
        self,
        gradient: np.ndarray,
        kernels: Kernels | ModuleType,
        world_size: int = 1,
        aim: Aim | None = None,
    ) -> Accumulated:
        """The accumulated vector to select from: what was kept back, with this gradient; the aim's
        entries apart."""

    def tune(self, **settings: Any) -> None:
        """Take over what the optimizer holds for this tensor now; only for memories that declare
        ``finishes``."""

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels | ModuleType, is_taken: bool = False
    ) -> None:
        """Keep what was not sent.

        sent : this rank's own message, decoded
        is_taken : the entries are +0.0 in the vector already
        """

    def take_all(self) -> np.ndarray:
        """Everything accumulated, to be sent dense; nothing is kept.  A copy."""

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """What the optimizer is given for a reduced gradient; only for memories that declare
        ``finishes``."""

    def commit(self) -> None:
        """The step is good: its new version is the state."""

    def roll_back(self) -> None:
        """The step failed: as if it had not been."""

    def add(self, returned: Selection) -> None:
        """Keep back, besides, what came back from an exchange: added to the committed state."""

    def arrays(self) -> dict[str, np.ndarray]:
        """The committed state, by name, for checkpoints: views, to be copied.  What is kept back is
        "residual"."""

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """The reverse of ``arrays``."""


class Memory(Protocol):
    """Makes states.  Implementations are frozen dataclasses, registered in ``MEMORIES``.

    conserves : law 1 holds: what is sent and what stays are together exactly what was accumulated
    keeps_rounding : keeps accumulated - sent where other values are sent than were accumulated
    adds_gradient : what is accumulated is the residual plus this step's gradient, and nothing else
    finishes : its states have ``finish``, which every reduced gradient goes through, compressed or
        not
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]
    conserves: ClassVar[bool]
    keeps_rounding: ClassVar[bool]
    adds_gradient: ClassVar[bool]
    finishes: ClassVar[bool]

    def create(self, spec: TensorSpec, *, rollback: bool) -> Any:
        """The state of a tensor before its first step."""
