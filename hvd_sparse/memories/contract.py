"""Contract of the memories: the state of one tensor between its steps."""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from hvd_sparse.kernels.contract import Aim, Kernels, Moments, Taking, Zeros
from hvd_sparse.types import Selection, TensorSpec


class Accumulated(NamedTuple):
    """The vector to select from in a step, with the results of the pass that made it.

    vector : residual + gradient; +0.0 where an entry was taken
    moments : of the whole vector; None if the pass had an aim
    taking : the entries that the pass took; None without an aim
    added : this step's addition to the residual; None if that is the gradient itself, or if a pass
        with an aim did not store it
    """

    vector: np.ndarray
    moments: Moments | None
    taking: Taking | None = None
    added: np.ndarray | None = None


class MemoryState(Protocol):
    """The state of one tensor: a step writes a new version, ``commit`` keeps it, ``roll_back``
    drops it.

    Attributes
    ----------
    step : completed steps of the tensor, set before each; seeds random draws
    is_average : the ranks' gradients are averaged, not summed; set before each step
    density : of the step, 1 if it runs dense, None if the method chooses its own; set before each
        step
    gain, settings : only of memories that declare ``finishes``, and known once a step is tuned: the
        factor for the ranks' sum of this step, 1 if it runs dense; and the optimizer's settings
        that must agree between ranks, as text
    """

    step: int
    is_average: bool
    density: float | None
    gain: float
    settings: str

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        """Add this gradient to the residual, take out the entries that reach the aim, and return
        the rest.

        Parameters
        ----------
        gradient : float32 or float64 [numel], read-only
        world_size : ranks over which the gradient will be summed
        aim : the entries to take out in the same pass; None takes none
        """

    def tune(self, **settings: object) -> None:
        """Adopt the optimizer's current settings for this tensor; only for memories that declare
        ``finishes``."""

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        """Keep the accumulated entries that were not sent.

        Parameters
        ----------
        sent : the entries that this rank has sent, as the others decode them
        is_exact : the values are those that were accumulated
        is_taken : the accumulated vector is without the sent values already: +0.0 where they are
            exact, else the rest of each entry
        """

    def take_all(self) -> np.ndarray:
        """Return a copy of the accumulated vector, to be sent dense, and keep nothing."""

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the gradient for the optimizer, ``reduced`` itself or a new vector, which is not
        checked again for NaN and Inf. Only for memories that declare ``finishes``.

        Raises
        ------
        NonFiniteGradient : the result would overflow without a second buffer; nothing was written
        """

    def commit(self) -> None:
        """Keep the new version: the step succeeded."""

    def roll_back(self) -> None:
        """Drop the new version: the step failed, and leaves no trace."""

    def add(self, returned: Selection) -> None:
        """Add the entries that came back from an exchange to the committed state."""

    def move(self, zeros: Zeros) -> None:
        """Hold the vectors on a device, before the first step; only for memories whose
        ``needs_host`` is empty."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the committed state by name, for checkpoints; the residual is called
        "residual". An array that is made when it is needed is empty before."""

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the state from the arrays of a checkpoint."""


class Memory(Protocol):
    """A maker of states: a frozen dataclass, registered in ``MEMORIES``.

    Attributes
    ----------
    conserves : law 1 holds: sent and kept entries together are exactly those accumulated
    keeps_rounding : keeps accumulated - sent if the sent values differ from the accumulated ones
    adds_gradient : accumulates the residual plus this step's gradient, and nothing else
    finishes : its states have ``finish``, which processes every reduced gradient, compressed or not
    counts_votes : the applied result is the sign of the sum, so selectors must send votes
    needs_host : reason why gradients on an accelerator are copied to the host with this memory and
        its options; empty if its vectors can be there (``MemoryState.move``)
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]
    conserves: ClassVar[bool]
    keeps_rounding: ClassVar[bool]
    adds_gradient: ClassVar[bool]
    finishes: ClassVar[bool]
    counts_votes: ClassVar[bool]

    @property
    def needs_host(self) -> str:
        """Return the reason, as above."""

    def create(self, spec: TensorSpec, *, rollback: bool) -> MemoryState:
        """Return the state of a tensor before its first step.

        rollback : keep the old version of the state until a step has succeeded, in a second buffer
        """
