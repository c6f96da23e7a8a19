"""Padding of the arrays that allgathers send, so that their lengths seldom change between steps.
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
from collections import defaultdict, deque
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np

from hvd_sparse.collectives.contract import MOST_BYTES, Request
from hvd_sparse.types import Value

Result = TypeVar("Result")

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
        self.nbytes = 0
        self._longest: deque[int] = deque(maxlen=PATIENCE)

    def for_ranks(self, count: int) -> int:
        """Return the length for the blocks of ``count`` ranks: ``nbytes``, or less if so many
        blocks of this length would be too long for one collective."""
        return min(self.nbytes, MOST_BYTES // count)

    def note(self, longest: int) -> None:
        """Adapt ``nbytes`` after a collective. ``longest`` is the length of its longest block
        without padding, in bytes."""
        self._longest.append(longest)
        most = max(self._longest)
        if most > self.nbytes or (len(self._longest) == PATIENCE and LARGE * most < self.nbytes):
            self.nbytes = -(-(most + most // SPARE) // GRAIN) * GRAIN


def needed(content: np.ndarray) -> int:
    return HEAD.size + content.nbytes


def write_block(content: np.ndarray, least: int = 0) -> np.ndarray:
    """Return the block of a 1-D contiguous array, uint8, padded to at least ``least`` bytes."""
    block = np.zeros(max(least, needed(content)), np.uint8)
    HEAD.pack_into(block, 0, block.size, content.nbytes)  # type: ignore[arg-type]
    block[HEAD.size : needed(content)] = content.view(np.uint8)
    return block


def read_blocks(joined: np.ndarray) -> list[np.ndarray] | None:
    """Return the arrays in concatenated blocks, as views; None if a block is damaged."""
    contents, offset = [], 0
    while offset < joined.size:
        left = joined.size - offset
        size = length = 0
        if left >= HEAD.size:
            length, size = HEAD.unpack_from(joined[offset : offset + HEAD.size].tobytes())
        if not HEAD.size + size <= length <= left:
            return None
        start = offset + HEAD.size
        contents.append(joined[start : start + size])
        offset += length
    return contents


class Padding:
    """Pads what the allgathers of one compressor send. For each of them, ``count`` is called with
    the bytes of padding and headers that were sent and received. If messages are sent from a device
    (``is_device``), those of any length are padded."""

    def __init__(self, count: Callable[[int, int], None], *, is_device: bool = False) -> None:
        self._count, self._is_device = count, is_device
        self._rooms: defaultdict[tuple[int, int], Room] = defaultdict(Room)

    def carry(
        self, conversation: Generator[Request, np.ndarray, Result], bucket: int, world_size: int
    ) -> Generator[Request, np.ndarray, Result]:
        """Run an exchange, and return its result. Yield its requests for collectives; those for
        allgathers have padded blocks in place of the arrays. ``bucket`` is the bucket's number, the
        same on every rank and in every step."""
        phase = 0
        received: Value = None
        while True:
            try:
                request = conversation.send(received)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            room, array = self._rooms[bucket, phase], request.array
            phase += 1
            if request.kind != "allgather":
                received = yield request
                continue
            least = room.nbytes if room.nbytes <= MOST_PADDED else 0
            block = write_block(array, room.for_ranks(world_size) if self._is_device else least)
            received = joined = yield Request("allgather", block)
            contents = read_blocks(joined)
            if contents is not None:  # otherwise the exchange raises an error after its last phase
                room.note(max(map(needed, contents)))
                received = np.concatenate(contents).view(array.dtype)
                self._count(block.nbytes - array.nbytes, joined.nbytes - received.nbytes)
