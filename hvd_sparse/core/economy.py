"""When sending everything is cheaper than sending a selection."""

from __future__ import annotations

DENSE_BYTES = 4
"""An entry of a dense float32 allreduce."""


def is_dense_cheaper(density: float, world_size: int, entry_bytes: float) -> bool:
    """Whether a dense ring allreduce moves no more bytes than an allgather of selections.

        allgather: (world_size - 1) * density * entry_bytes          an entry of the tensor, received by each rank
        dense:     2 * (world_size - 1) / world_size * 4

    From shared quantities only, so that all ranks decide alike.  At 8 bytes an entry: density >= 1 / world_size.
    """
    return density * entry_bytes * world_size >= 2 * DENSE_BYTES
