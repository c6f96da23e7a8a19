"""Double buffer: a vector that can return to its version before the step."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim, Kernels, Zeros
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.types import Selection


class DoubleBuffer:
    """A vector with an old and a new version, until the step has succeeded.

    A failed step is noticed only after this rank has written its new residual, and subtracting the
    gradient again does not give the old bits back. So the new version goes to a second buffer.

    Without ``rollback`` there is one buffer, written in place.

    Attributes
    ----------
    old, new : float32 or float64 [numel]; the same array without ``rollback``
    can_roll_back : the old version outlives the step
    """

    def __init__(self, numel: int, dtype: DTypeLike, *, rollback: bool) -> None:
        self.old = aligned_zeros(numel, dtype)
        self.new = aligned_zeros(numel, dtype) if rollback else self.old
        self.can_roll_back = rollback

    def move(self, zeros: Zeros) -> None:
        """Hold zeros made by another: on a device."""
        size, dtype = self.old.size, self.old.dtype
        self.old = zeros(size, dtype)
        self.new = zeros(size, dtype) if self.can_roll_back else self.old

    @property
    def nbytes(self) -> int:
        """Return the bytes of all buffers."""
        return self.old.nbytes + (self.new.nbytes if self.can_roll_back else 0)

    def commit(self) -> None:
        """Make the new version the old one."""
        self.old, self.new = self.new, self.old


def put_back(residual: np.ndarray, sent: Selection) -> None:
    """Add sent entries back to a residual that has one buffer only."""
    residual[sent.indices] += sent.values


def accumulate(
    gradient: np.ndarray,
    residual: np.ndarray,
    out: np.ndarray,
    aim: Aim | None,
    kernels: Kernels,
) -> Accumulated:
    """Write residual + gradient to ``out``, and take the entries that reach the aim in the same
    pass.

    Parameters
    ----------
    gradient, residual : float32 or float64 [numel]
    out : written; may be ``residual`` itself
    aim : the entries to take; None takes none and returns the moments instead
    kernels : of the engine
    """
    if aim is None:
        return Accumulated(out, kernels.accumulate(gradient, residual, out), added=gradient)
    taking = kernels.accumulate_and_take(gradient, residual, out, aim)
    return Accumulated(out, None, taking, added=gradient)
