"""Whether all ranks still have the same gradients: a checksum of what was applied, now and then, in
the next carrier."""

from __future__ import annotations

import numpy as np

from hvd_sparse.core.wire.carrier import CHECKSUM_MASK
from hvd_sparse.core.wire.checksum import crc32


class Replicas:
    """Checksums that wait for their tensor's next carrier.

    every : steps from one checksum to the next; 0 for none
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._checksums: dict[str, int] = {}

    def note(self, key: str, steps: int, applied: np.ndarray) -> None:
        """A tensor has completed so many steps, the last with ``applied``; remembered where it is
        due, else forgotten."""
        if self._every:
            self._checksums[key] = (
                short_checksum(applied.tobytes()) if steps % self._every == 0 else 0
            )

    def due(self, key: str) -> int:
        """For the tensor's carrier; 0 where there is nothing to compare."""
        return self._checksums.get(key, 0)

    def forget(self) -> None:
        """Compare nothing of the past: this rank goes on from another state."""
        self._checksums.clear()


def short_checksum(data: bytes) -> int:
    """As much of a checksum as a carrier has room for."""
    return crc32(data) & CHECKSUM_MASK
