"""Double buffer: a vector that can return to its version before the step."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.core.kernels.aligned import aligned_zeros
from hvd_sparse.types import Selection


class DoubleBuffer:
    """A vector with an old and a new version, until the step has succeeded.

    A failed step is noticed only after this rank has written its new residual, and subtracting the
    gradient again does not give the old bits back. So the new version goes to a second buffer.

    Without ``rollback`` there is one buffer, written in place.

    Attributes
    ----------
    old, new : float32 or float64 [numel]; the same array without ``rollback``
    """

    def __init__(self, numel: int, dtype: DTypeLike, *, rollback: bool) -> None:
        self.old = aligned_zeros(numel, dtype)
        self.new = aligned_zeros(numel, dtype) if rollback else self.old

    @property
    def can_roll_back(self) -> bool:
        """Tell whether the old version outlives the step."""
        return self.new is not self.old

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
