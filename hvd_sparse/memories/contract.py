"""The base classes of memories, which keep the entries that are not sent, and of their states. A
memory has one state for each tensor; a ``ResidualState`` has a residual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple, Union

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.checks import Options
from hvd_sparse.kernels.arrays import add_at, aligned_zeros
from hvd_sparse.kernels.contract import Aim, Kernels, Moments, Taking, Zeros
from hvd_sparse.kernels.optimizers import Direction
from hvd_sparse.types import Selection, TensorSpec, Value


class Accumulated(NamedTuple):
    """The vector from which a step selects, with the results of the pass that computed it.

    vector : residual + gradient, with +0.0 in place of the entries in ``taking``
    moments : statistics of the vector's magnitudes; None if the pass had an aim (a threshold: the
        pass takes the entries that reach it out of the vector)
    taking : result of a pass with an aim: the number of entries that are NaN or Inf, and the
        entries that were taken out of the vector; None if the pass had no aim
    added : the vector that this step added to the residual; None if ``vector`` is the gradient
        itself, or if the pass had an aim
    """

    vector: np.ndarray
    moments: Moments | None
    taking: Taking | None = None
    added: np.ndarray | None = None

    def run(self, kernels: Kernels) -> Accumulated:
        """Return this vector: a memory without a residual has nothing to add to one."""
        return self

    @property
    def taken(self) -> Selection | None:
        return None if self.taking is None else self.taking.taken

    def put_back(self) -> None:
        """Write the taken entries back to the vector."""
        if (taken := self.taken) is not None:
            self.vector[taken.indices] = taken.values


class Addition(NamedTuple):
    """The addition of a gradient to a residual by one pass: the arguments of the kernel
    ``accumulate_and_take`` or, without an aim, of ``accumulate``."""

    gradient: np.ndarray
    residual: np.ndarray
    out: np.ndarray
    aim: Aim | None = None
    direction: Direction | None = None

    def run(self, kernels: Kernels) -> Accumulated:
        gradient, residual, out, aim, direction = self
        if aim is None:
            return Accumulated(out, kernels.accumulate(gradient, residual, out), added=gradient)
        taking = kernels.accumulate_and_take(gradient, residual, out, aim, direction)
        return Accumulated(out, None, taking)


Prepared = Union[Addition, Accumulated]


class Release(NamedTuple):
    """How much of each selected entry is sent; the rest stays in the residual.

    sent_in : for each entry, the step in which it was last sent, in the residual's dtype
    step : number of this step
    shares : float64 [ages], for each age (number of steps since ``sent_in``) the part of an entry
        that is sent. The last one also holds for higher ages; the first is not used
    """

    sent_in: np.ndarray
    step: int
    shares: np.ndarray

    def of(self, selected: Selection) -> Selection:
        """Return the parts of the selected entries to send. A part and the rest of its entry, which
        is computed by subtraction, add up to exactly the entry."""
        values = selected.values
        ages = self.step - self.sent_in[selected.indices].astype(np.float64)
        ages = np.clip(ages, 1, self.shares.size - 1)
        share = self.shares[ages.astype(np.intp)].astype(values.dtype)
        # Differences of numbers that differ by a factor of at most 2 are exact.
        parts = np.where(share >= 0.5, values * share, values - values * (1 - share))
        return Selection(selected.indices, parts, selected.numel)


class MemoryState:
    """Base class of the states of one tensor. This class itself keeps nothing.

    A step writes a new version of the state. Then ``commit`` keeps this version, or ``roll_back``
    drops it. The caller sets ``step``, ``world_size``, ``is_average`` and ``density`` before each
    step. In memories with ``Memory.finishes``, the method ``tune`` sets ``settings``, and the
    options that determine ``gain``.

    Attributes
    ----------
    step : number of the tensor's completed steps, which seeds random numbers
    world_size : number of ranks whose gradients are summed
    is_average : the ranks' gradients are averaged, not summed
    density : density of the step: 1 if it runs dense, None if the method has no density
    gain : factor by which the ranks' sum of this step is multiplied, 1 if the step runs dense
    release : the parts of the selected entries to send in this step, set by ``prepare``; None to
        send whole entries
    settings : the optimizer's settings that must be equal on all ranks, as text
    reads_parameter : ``finish`` reads the parameter's value
    """

    step = 0
    world_size = 1
    is_average = True
    density: float | None = None
    gain = 1.0
    release: Release | None = None
    settings = ""
    reads_parameter = False

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        """Return the addition of this step's gradient to the residual, for the caller to run. If
        the memory adds nothing to a residual, return the accumulated vector itself.

        Parameters
        ----------
        gradient : float32 or float64 [numel], read-only
        aim : if given, the same pass lists the entries that reach the aim's threshold, and writes 0
            in their places in the vector. If they are more than the aim's capacity, it does neither
        """
        raise NotImplementedError

    def compensate(
        self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None
    ) -> Accumulated:
        """Call ``prepare``, run the addition, and return the accumulated vector."""
        return self.prepare(gradient, kernels, aim).run(kernels)

    def tune(self, *args: Value, **settings: Value) -> None:
        """Take the learning rate, the momentum and other settings from the optimizer. Called only
        for memories with ``Memory.finishes``."""

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        """Keep the part of the accumulated vector that was not sent.

        Parameters
        ----------
        sent : the entries that this rank has sent, with the values that other ranks decode
        is_exact : the sent values are equal to the accumulated values
        is_taken : the sent values have already been subtracted from the accumulated vector
        """

    def take_all(self) -> np.ndarray:
        """Return a copy of the accumulated vector for a dense step, and clear the residual."""
        raise NotImplementedError

    def finish(
        self, reduced: np.ndarray, parameter: np.ndarray, is_compressed: bool, kernels: Kernels
    ) -> np.ndarray:
        """Return the gradient for the optimizer: ``reduced`` itself (the sum or average over the
        ranks), or a new vector, which the caller checks for NaN and Inf. Called only for memories
        with ``Memory.finishes``. ``parameter`` is the parameter's value, flat; it may be empty
        without ``reads_parameter``.

        Raises
        ------
        NonFiniteGradient : the memory's vectors would overflow, and there is no second buffer to
            undo this; nothing has been written
        """
        raise NotImplementedError

    def commit(self) -> None:
        """Keep the new version of the state, because the step succeeded."""

    def roll_back(self) -> None:
        """Drop the new version of a failed step. With ``rollback``, the old state is restored."""

    def add(self, returned: Selection) -> None:
        """Add to the committed residual the entries that an exchange returned as not applied."""

    def move(self, zeros: Zeros) -> None:
        """Before the first step, replace the vectors by vectors of zeros on an accelerator,
        allocated by the function ``zeros``. Only for memories whose ``needs_host`` is empty."""

    def arrays(self) -> dict[str, np.ndarray]:
        """Return views of the committed vectors by name, for checkpoints. The residual's name is
        "residual". A vector that has not been allocated yet has length 0."""
        return {}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        """Restore the state from the arrays of a checkpoint."""

    def numbers(self) -> dict[str, float]:
        """Return, by name, the numbers of this state that a checkpoint stores besides arrays."""
        return {}

    def recall(self, numbers: Mapping[str, float]) -> None:
        """Restore the numbers that ``numbers`` returned. Called after ``load``."""


class Memory(Options):
    """Base class of memories: frozen dataclasses, registered in ``MEMORIES``, that create states.

    Attributes
    ----------
    conserves : the sum of sent and kept entries is exactly the accumulated vector
    keeps_rounding : if sent values differ from the accumulated ones, the difference is kept
    adds_gradient : the accumulated vector is exactly the residual plus this step's gradient
    finishes : ``finish`` processes all reduced gradients, even of tensors that are never compressed
    reads_parameter : with these options, ``finish`` reads the parameter's value
    counts_votes : the optimizer gets the sign of the ranks' sum, so the selector must send votes
        (+1 and -1)
    needs_host : why, with these options, gradients on an accelerator must be copied to the host;
        empty if they need not be. The text completes a sentence: "the memory ..."
    needs_optimizer : why, with these options, a compressor needs ``optimizer=``; empty if it does
        not. The text completes a sentence in the same way
    """

    id: ClassVar[str]
    conserves: ClassVar[bool] = True
    keeps_rounding: ClassVar[bool] = True
    adds_gradient: ClassVar[bool] = True
    finishes: ClassVar[bool] = False
    reads_parameter = False
    counts_votes: ClassVar[bool] = False
    needs_host: ClassVar[str] = ""
    needs_optimizer: ClassVar[str] = ""

    def create(self, spec: TensorSpec, *, rollback: bool) -> MemoryState:
        """Return the state of a tensor before its first step. With ``rollback``, a second buffer
        keeps the old version until the step has succeeded."""
        raise NotImplementedError


class DoubleBuffer:
    """A vector that has an old and a new version until the step has succeeded. The old version is
    needed to undo a failed step. A rank learns of the failure only after it has written its new
    residual, and subtracting the gradient again would not restore the old bits. Without
    ``rollback``, ``old`` and ``new`` are one buffer, and a step cannot be undone exactly."""

    def __init__(
        self, numel: int, dtype: DTypeLike, *, rollback: bool, zeros: Zeros = aligned_zeros
    ) -> None:
        self.old = zeros(numel, dtype)
        self.new = zeros(numel, dtype) if rollback else self.old
        self.can_roll_back, self.zeros = rollback, zeros

    def like(self, numel: int | None = None, zeros: Zeros | None = None) -> DoubleBuffer:
        """Return zeros, of this buffer's length or of ``numel`` entries, allocated as this buffer
        or by ``zeros``."""
        numel, zeros = self.old.size if numel is None else numel, zeros or self.zeros
        return DoubleBuffer(numel, self.old.dtype, rollback=self.can_roll_back, zeros=zeros)

    @property
    def nbytes(self) -> int:
        return self.old.nbytes + (self.new.nbytes if self.can_roll_back else 0)

    def commit(self) -> None:
        self.old, self.new = self.new, self.old


class ResidualState(MemoryState):
    """The residual of one tensor, to which the gradient of each step is added."""

    def __init__(self, spec: TensorSpec, rollback: bool) -> None:
        self.residual = DoubleBuffer(spec.numel, spec.accumulator, rollback=rollback)
        self._sent = self._nothing = Selection.empty(spec.numel, spec.accumulator)

    def prepare(self, gradient: np.ndarray, kernels: Kernels, aim: Aim | None = None) -> Prepared:
        return Addition(gradient, self.residual.old, self.residual.new, aim)

    def update(self, sent: Selection, is_exact: bool, is_taken: bool = False) -> None:
        # Nothing is left of exactly sent entries, so write +0.0, without reading or rounding.
        if is_exact and not is_taken:
            self.residual.new[sent.indices] = 0.0
        elif not is_taken:
            add_at(self.residual.new, sent.indices, -sent.values)
        if not self.residual.can_roll_back:
            self._sent = sent

    def take_all(self) -> np.ndarray:
        # Copy, because the buffer is cleared while a collective may still read the returned vector.
        everything = self.residual.new.copy()
        if not self.residual.can_roll_back:
            indices = np.arange(everything.size, dtype=np.uint32)
            self._sent = Selection(indices, everything, everything.size)
        self.residual.new[:] = 0
        return everything

    def commit(self) -> None:
        self.residual.commit()
        self._sent = self._nothing

    def roll_back(self) -> None:
        """Drop the new residual. Without a second buffer, add the sent entries back to the
        residual, which then includes the failed step's gradient."""
        if not self.residual.can_roll_back:
            self.residual.old[self._sent.indices] += self._sent.values
        self._sent = self._nothing

    def add(self, returned: Selection) -> None:
        self.residual.old[returned.indices] += returned.values

    def move(self, zeros: Zeros) -> None:
        self.residual = self.residual.like(zeros=zeros)

    def arrays(self) -> dict[str, np.ndarray]:
        return {"residual": self.residual.old}

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        self.residual.old[:] = arrays["residual"]
