"""Double buffer: a vector that can return to its version before the step; and a residual in one."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim, Kernels, Zeros
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.types import Selection, TensorSpec


class DoubleBuffer:
    """A vector with an old and a new version, until the step has succeeded.

    A failed step is noticed only after this rank has written its new residual, and subtracting the
    gradient again does not give the old bits back. So the new version is written to a second
    buffer; without ``rollback`` there is one buffer, ``old`` and ``new``, written in place.
    """

    def __init__(self, numel: int, dtype: DTypeLike, *, rollback: bool) -> None:
        self.old = aligned_zeros(numel, dtype)
        self.new = aligned_zeros(numel, dtype) if rollback else self.old
        self.can_roll_back = rollback

    def move(self, zeros: Zeros) -> None:
        """Replace the buffers by zeros in another place."""
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


class ResidualState:
    """The residual of one tensor: ``MemoryState`` without ``compensate``."""

    def __init__(self, spec: TensorSpec, rollback: bool) -> None:
        self.residual = DoubleBuffer(spec.numel, spec.accumulator, rollback=rollback)
        self._sent = self._nothing = Selection.empty(spec.numel, spec.accumulator)

    def update(
        self, sent: Selection, is_exact: bool, kernels: Kernels, is_taken: bool = False
    ) -> None:
        # Set to +0.0 where the others decode the same values: no rounding, no second read.
        if is_exact and not is_taken:
            kernels.clear(self.residual.new, sent.indices)
        elif not is_taken:
            kernels.scatter_add(self.residual.new, sent.indices, -sent.values)
        if not self.residual.can_roll_back:
            self._sent = sent

    def take_all(self) -> np.ndarray:
        # A copy: the buffer is set to zero while the collective still reads what it was given.
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
        """Drop the new residual; without a second buffer give the sent entries back to the only
        one, and keep the failed step's gradient."""
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
