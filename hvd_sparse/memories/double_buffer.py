"""State that can go back to what it was before the step."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_sparse.core.kernels.aligned import aligned_zeros
from hvd_sparse.types import Selection


class StagedArray:
    """A vector with an old and a new version, until the step is known good.

    A failed step is noticed only after this rank has written its new residual, and subtracting the
    gradient again does not give the old bits back.  So the new version goes to a second buffer.

    Without ``rollback`` there is one buffer, written in place.
    """

    def __init__(self, numel: int, dtype: Any, *, rollback: bool) -> None:
        self.old = aligned_zeros(numel, dtype)
        self.new = aligned_zeros(numel, dtype) if rollback else self.old

    @property
    def can_roll_back(self) -> bool:
        return self.new is not self.old

    @property
    def nbytes(self) -> int:
        return self.old.nbytes + (self.new.nbytes if self.can_roll_back else 0)

    def commit(self) -> None:
        self.old, self.new = self.new, self.old


def put_back(residual: np.ndarray, sent: Selection) -> None:
    """Undo the sending of entries in the only buffer there is."""
    residual[sent.indices] += sent.values
