"""Contract of the memories and of their states, which hold the vectors of one tensor between steps;
and the residual, which most states have."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim, Kernels, Moments, Taking, Zeros
from hvd_sparse.types import Selection, TensorSpec, Value


class Accumulated(NamedTuple):
    """The vector from which a step selects, with the results of the pass that computed it.

    vector : residual + gradient; +0.0 where an entry was taken
    moments : moments of the whole vector; None if the pass had an aim
    taking : the entries that the pass took; None without an aim
    added : the vector that this step added to the residual; None if ``vector`` is the gradient
        itself, or if a pass with an aim did not store what it added
    """

    vector: np.ndarray
    moments: Moments | None
    taking: Taking | None = None
    added: np.ndarray | None = None


class MemoryState:
    """Base class of the states of one tensor. This one keeps nothing.

    A step writes a new version of the state; ``commit`` keeps the new version, ``roll_back`` drops
    it.

    Attributes
    ----------
    step : number of completed steps of the tensor, set before each step; seeds random draws
    is_average : the ranks' gradients are averaged, not summed; set before each step
    density : density of the step, 1 if it runs dense, None if the method chooses its own; set
        before each step
    gain : for memories with ``finishes``, factor by which the ranks' sum of this step is
        multiplied; 1 if the step runs dense. Valid after ``tune``
    settings : for memories with ``finishes``, the optimizer's settings that must agree between
        ranks, as text. Valid after ``tune``
    """

    step = 0
    is_average = True
    density: float | None = None
    gain = 1.0
    settings = ""

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        """Add this gradient to the residual, take out the entries that reach the aim, and return
        the rest.

        Parameters
        ----------
        gradient : float32 or float64 [numel], read-only
        world_size : number of ranks over which the gradient will be summed
        aim : the pass also takes the entries that reach this aim; None takes none
        """
        raise NotImplementedError

    def tune(self, *args: Value, **settings: Value) -> None:
        """Adopt the optimizer's settings for this tensor, if the memory declares ``finishes``."""

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        """Keep the accumulated entries that were not sent.

        Parameters
        ----------
        sent : the entries that this rank has sent, as other ranks decode them
        is_exact : the sent values are equal to the accumulated ones
        is_taken : the sent values have been subtracted from the accumulated vector already; where
            they were exact it has +0.0, otherwise the rounding error
        """

    def take_all(self) -> np.ndarray:
        """Return a copy of the accumulated vector, which is sent dense, and keep nothing."""
        raise NotImplementedError

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the gradient for the optimizer: ``reduced`` itself, or a new vector, which is not
        checked again for NaN and Inf. Only for memories that declare ``finishes``.

        Raises
        ------
        NonFiniteGradient : without a second buffer, the result would overflow; nothing was written
        """
        raise NotImplementedError

    def commit(self) -> None:
        """Keep the new version, because the step succeeded."""

    def roll_back(self) -> None:
        """Drop the new version, because the step failed; the state is as before the step."""

    def add(self, returned: Selection) -> None:
        """Add the entries that an exchange gave back to the committed state."""

    def move(self, zeros: Zeros) -> None:
        """Allocate the vectors on a device, by ``zeros``, before the first step. Only for memories
        whose ``needs_host`` is empty."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the committed state by name, for checkpoints. The residual's name is
        "residual". An array that is allocated only when it is needed is empty before."""
        return {}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the state from the arrays of a checkpoint."""


class Memory:
    """Base class of memories: frozen dataclasses, registered in ``MEMORIES``, that create states.

    Attributes
    ----------
    paper : key of the paper in ``papers.bib``, or None
    conserves : the sum of sent and kept entries is exactly the accumulated vector
    keeps_rounding : keeps accumulated - sent if the sent values differ from the accumulated ones
    adds_gradient : accumulates the residual plus this step's gradient, and nothing else
    finishes : its states have ``finish``, which processes every reduced gradient, of compressed and
        of other tensors
    counts_votes : the optimizer gets the sign of the sum, so selectors must send votes
    needs_host : the reason why, with this memory and its options, gradients on an accelerator are
        copied to the host; empty if the memory's vectors can be on the accelerator
        (``MemoryState.move``)
    """

    id: ClassVar[str]
    paper: ClassVar[str | None] = None
    keeps_rounding: ClassVar[bool] = True
    adds_gradient: ClassVar[bool] = True
    finishes: ClassVar[bool] = False
    counts_votes: ClassVar[bool] = False

    @property
    def conserves(self) -> bool:
        return True

    @property
    def needs_host(self) -> str:
        return ""

    def create(self, spec: TensorSpec, *, rollback: bool) -> MemoryState:
        """Return the state of a tensor before its first step.

        rollback : keep the old version of the state until a step has succeeded, in a second buffer
        """
        raise NotImplementedError


class DoubleBuffer:
    """A vector with an old and a new version, until the step has succeeded.

    A step's failure is noticed only after this rank has written its new residual, and subtracting
    the gradient again does not restore the old bits. The new version is therefore written to a
    second buffer. Without ``rollback``, ``old`` and ``new`` are the same buffer, which is written
    in place.
    """

    def __init__(self, numel: int, dtype: DTypeLike, *, rollback: bool) -> None:
        self.old = aligned_zeros(numel, dtype)
        self.new = aligned_zeros(numel, dtype) if rollback else self.old
        self.can_roll_back = rollback

    def move(self, zeros: Zeros) -> None:
        """Replace the buffers by zeros from the function ``zeros``, which allocates on a device."""
        size, dtype = self.old.size, self.old.dtype
        self.old = zeros(size, dtype)
        self.new = zeros(size, dtype) if self.can_roll_back else self.old

    @property
    def nbytes(self) -> int:
        return self.old.nbytes + (self.new.nbytes if self.can_roll_back else 0)

    def commit(self) -> None:
        self.old, self.new = self.new, self.old


def accumulate(
    gradient: np.ndarray,
    residual: np.ndarray,
    out: np.ndarray,
    aim: Aim | None,
    kernels: Kernels,
) -> Accumulated:
    """Write residual + gradient to ``out``; with an aim, take its entries in the same pass."""
    if aim is None:
        return Accumulated(out, kernels.accumulate(gradient, residual, out), added=gradient)
    taking = kernels.accumulate_and_take(gradient, residual, out, aim)
    return Accumulated(out, None, taking, added=gradient)


class ResidualState(MemoryState):
    """The residual of one tensor, to which gradients are added."""

    def __init__(self, spec: TensorSpec, rollback: bool) -> None:
        self.residual = DoubleBuffer(spec.numel, spec.accumulator, rollback=rollback)
        self._sent = self._nothing = Selection.empty(spec.numel, spec.accumulator)

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, world_size: int = 1, aim: Aim | None = None
    ) -> Accumulated:
        return accumulate(gradient, self.residual.old, self.residual.new, aim, kernels)

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        # If the other ranks decode the same values, set the entries to +0.0: no rounding, and no
        # read.
        if is_exact and not is_taken:
            kernels.clear(self.residual.new, sent.indices)
        elif not is_taken:
            kernels.scatter_add(self.residual.new, sent.indices, -sent.values)
        if not self.residual.can_roll_back:
            self._sent = sent

    def take_all(self) -> np.ndarray:
        # Copy, because the buffer is set to zero while a collective may still read the returned
        # vector.
        everything = self.residual.new.copy()
        if not self.residual.can_roll_back:
            indices = np.arange(everything.size, dtype=np.uint32)
            self._sent = Selection(indices, everything, everything.size)
        self.residual.new[:] = 0
        return everything

    def commit(self) -> None:
        self.residual.commit()
        self._forget()

    def roll_back(self) -> None:
        """Drop the new residual. Without a second buffer, add the sent entries back to the
        residual, which then keeps the failed step's gradient."""
        if not self.residual.can_roll_back:
            self.residual.old[self._sent.indices] += self._sent.values
        self._forget()

    def _forget(self) -> None:
        self._sent = self._nothing

    def add(self, returned: Selection) -> None:
        self.residual.old[returned.indices] += returned.values

    def move(self, zeros: Zeros) -> None:
        self.residual.move(zeros)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"residual": self.residual.old}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self.residual.old[:] = arrays["residual"]
