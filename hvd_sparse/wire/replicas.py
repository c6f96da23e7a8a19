"""Replica check: every few steps, the next step's carrier also holds a checksum of the gradient
that was applied last."""

from __future__ import annotations

import numpy as np

from hvd_sparse.wire.carrier import CHECKSUM_MASK
from hvd_sparse.wire.checksum import crc32


class Replicas:
    """Checksums that wait for their tensor's next carrier.

    Parameters
    ----------
    every : steps from one checksum to the next; 0 for none
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._checksums: dict[str, int] = {}

    def note(self, key: str, steps: int, applied: np.ndarray) -> None:
        """Remember the checksum of an applied gradient where it is due; else forget the last one.

        Parameters
        ----------
        key : name of the tensor
        steps : completed steps, this one included
        applied : the gradient that the optimizer was given
        """
        if self._every:
            # Every carrier has these words: between checks a 0, in which all ranks agree.
            self._checksums[key] = (
                short_checksum(applied.tobytes()) if steps % self._every == 0 else 0
            )

    def due(self, key: str) -> int:
        """Return the checksum for the tensor's carrier; 0 where there is nothing to compare."""
        return self._checksums.get(key, 0)

    def forget(self) -> None:
        """Forget all checksums: this rank goes on from another state."""
        self._checksums.clear()


def short_checksum(data: bytes) -> int:
    """Return as much of a checksum as a carrier has room for."""
    return crc32(data) & CHECKSUM_MASK
