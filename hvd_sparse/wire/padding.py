"""Padding of the arrays that ranks allgather, so that their lengths seldom change between steps.
Each array is sent as a block. Zeros at its end extend the block to a length that is called the
room.

    offset  bytes  content of a block (little-endian)
    0       8      number of bytes of the block, with this header and the padding
    8       8      number of bytes of the array
    16      ...    the array, then zeros

Horovod caches the shape of every named tensor. If a length changes, the ranks negotiate again,
which takes longer than sending a short message. NCCL gathers blocks of equal lengths in one
operation; for unequal lengths, Horovod needs one operation for each rank.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np

from hvd_sparse.collectives.contract import MOST_BYTES, Request
from hvd_sparse.errors import CorruptPayload

Result = TypeVar("Result")
Count = Callable[[int, int], None]
"""Function of two numbers: how many bytes of padding and headers were sent, and how many were
received."""

HEAD = struct.Struct("<QQ")
GRAIN = 64
"""The length of a room is a multiple of this many bytes."""
SPARE = 8
"""A room is longer than the longest block by 1 / ``SPARE`` of the block, because lengths vary."""
LARGE = 2
"""A room is too large if its length is more than this many times that of the longest block."""
PATIENCE = 8
"""A room is shortened after it has been too large in this many consecutive collectives."""
MOST_PADDED = 32_768
"""Rooms above this many bytes are not used for messages in the host's memory, because padding would
cost more than it saves."""


class Room:
    """The length in bytes, ``nbytes``, to which the blocks of a collective are padded; 0 before the
    first collective. All ranks compute the same length, because all receive the same blocks."""

    def __init__(self) -> None:
        self.nbytes = self._lately = self._times_too_large = 0

    def for_ranks(self, count: int) -> int:
        """Return the length for the blocks of ``count`` ranks: ``nbytes``, or less if so many
        blocks of this length would be too long for one collective."""
        return min(self.nbytes, MOST_BYTES // count)

    def note(self, longest: int) -> None:
        """Adapt ``nbytes`` after a collective. ``longest`` is the length of its longest block
        without padding, in bytes."""
        if longest > self.nbytes:
            self._settle(longest)
        elif LARGE * longest >= self.nbytes:
            self._lately = self._times_too_large = 0
        else:
            self._lately = max(self._lately, longest)
            self._times_too_large += 1
            if self._times_too_large == PATIENCE:
                self._settle(self._lately)

    def _settle(self, longest: int) -> None:
        self.nbytes = -(-(longest + longest // SPARE) // GRAIN) * GRAIN
        self._lately = self._times_too_large = 0


def needed(content: np.ndarray) -> int:
    return HEAD.size + content.nbytes


def write_block(content: np.ndarray, least: int = 0) -> np.ndarray:
    """Return the block of a 1-D contiguous array, uint8, padded to at least ``least`` bytes."""
    block = np.zeros(max(least, needed(content)), np.uint8)
    HEAD.pack_into(block, 0, block.size, content.nbytes)  # type: ignore[arg-type]
    block[HEAD.size : needed(content)] = content.view(np.uint8)
    return block


def read_blocks(joined: np.ndarray, name: str) -> list[np.ndarray]:
    """Return the arrays in concatenated blocks, as views. Raises CorruptPayload for damaged blocks;
    the error has the collective's ``name``."""
    contents, offset = [], 0
    while offset < joined.size:
        left = joined.size - offset
        size = length = 0
        if left >= HEAD.size:
            length, size = HEAD.unpack_from(joined[offset : offset + HEAD.size].tobytes())
        if not HEAD.size + size <= length <= left:
            raise CorruptPayload(
                f"the collective {name!r} received a block that announces {length} bytes, {size} "
                f"of them content, but {left} bytes are left: it was altered on its way"
            )
        start = offset + HEAD.size
        contents.append(joined[start : start + size])
        offset += length
    return contents


def unpadded(
    joined: np.ndarray, array: np.ndarray, sent: int, name: str, count: Count, room: Room | None
) -> np.ndarray:
    """Return the arrays of all ranks, concatenated, from the blocks in a collective's result.
    Raises CorruptPayload if a block is truncated or altered.

    array : this rank's array, whose dtype the result has
    sent : number of bytes of this rank's block
    count : called with the bytes of padding and headers that were sent and received
    room : its length is adapted to the longest block; None if there is no room to adapt
    """
    contents = read_blocks(joined, name)
    if room is not None:
        room.note(max(map(needed, contents)))
    brought: np.ndarray = np.concatenate(contents).view(array.dtype)
    count(sent - array.nbytes, joined.nbytes - brought.nbytes)
    return brought


class Padding:
    def __init__(self, count: Count) -> None:
        self._count = count
        self._rooms: defaultdict[tuple[int, int], Room] = defaultdict(Room)

    def carry(
        self, conversation: Generator[Request, np.ndarray, Result], bucket: int
    ) -> Generator[Request, np.ndarray, Result]:
        """Run an exchange, and return its result. Yield its requests for collectives, with padded
        blocks in place of the arrays of allgathers. ``bucket`` is the bucket's number, the same on
        every rank and in every step."""
        phase, received = 0, None
        while True:
            try:
                request = next(conversation) if received is None else conversation.send(received)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            if request.kind == "allgather":
                received = yield from self._gather(request.array, self._rooms[bucket, phase])
            else:
                received = yield request
            phase += 1

    def _gather(self, array: np.ndarray, room: Room) -> Generator[Request, np.ndarray, np.ndarray]:
        block = write_block(array, room.nbytes if room.nbytes <= MOST_PADDED else 0)
        joined = yield Request("allgather", block)
        try:
            return unpadded(joined, array, block.nbytes, "gather", self._count, room)
        except CorruptPayload:
            # Return the damaged bytes; the exchange raises the error after its last phase.
            return joined
