"""Capacity: the entries that fit, so that the messages of all ranks stay within a number of
bytes."""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from hvd_sparse.wire.frame import HEADER_BYTES
from hvd_sparse.wire.message import overhead_bytes


class Encoder(Protocol):
    """The lengths of a codec's frames."""

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        """Return the bytes behind a frame's header."""


@lru_cache(maxsize=4096)  # asked for at every step of a tensor
def capacity(
    codec: Encoder, numel: int, value_bytes: int, world_size: int, gathered_bytes: int
) -> int:
    """Return how many entries a rank may send of a tensor: at least one.

    For codecs whose length depends on where the entries are, the expected length is kept.

    Parameters
    ----------
    codec : hashable, at the step's density
    numel : entries of the tensor
    value_bytes : of the accumulator's dtype
    world_size : number of ranks
    gathered_bytes : bytes that the messages of all ranks may come to
    """
    budget = gathered_bytes / world_size - overhead_bytes(1) - HEADER_BYTES
    least, most = 1, max(1, numel)  # lengths rise with the count: the bound is found by bisection
    while least < most:
        middle = (least + most + 1) // 2
        if codec.body_bytes(middle, numel, value_bytes) <= budget:
            least = middle
        else:
            most = middle - 1
    return least
