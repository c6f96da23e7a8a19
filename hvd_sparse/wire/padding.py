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

import numpy as np

from hvd_sparse.collectives.contract import MOST_BYTES

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
    """Pads what the allgathers of one compressor send. ``place`` is the number of a bucket and that
    of a collective in its exchange, which are the same on every rank and in every step. If messages
    are sent from a device (``is_device``), those of any length are padded."""

    def __init__(self, *, is_device: bool = False) -> None:
        self._is_device = is_device
        self._rooms: defaultdict[tuple[int, int], Room] = defaultdict(Room)

    def pack(self, array: np.ndarray, place: tuple[int, int], world_size: int) -> np.ndarray:
        """Return the padded block of an array that this rank is about to send."""
        room = self._rooms[place]
        least = room.nbytes if room.nbytes <= MOST_PADDED else 0
        return write_block(array, room.for_ranks(world_size) if self._is_device else least)

    def unpack(self, joined: np.ndarray, place: tuple[int, int], dtype: np.dtype) -> np.ndarray:
        """Return the concatenated arrays of all ranks; the received blocks if one is damaged, which
        the exchange then notices after its last collective."""
        contents = read_blocks(joined)
        if contents is None:
            return joined
        self._rooms[place].note(max(map(needed, contents)))
        whole: np.ndarray = np.concatenate(contents).view(dtype)
        return whole
