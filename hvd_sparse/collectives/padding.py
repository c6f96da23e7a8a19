"""Padding: arrays travel as blocks whose lengths stay the same from step to step.

    offset  bytes  content of a block (little-endian)
    0       8      bytes of the block, this head and the padding included
    8       8      bytes of the content
    16      ...    the content, then zeros

Horovod remembers what a name stood for in the last step.  Where a length has changed, all ranks ask
each other anew, which takes longer than a short message.  NCCL joins blocks of one length by one
operation, those of unequal lengths by one operation a rank.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Generator
from typing import TypeVar

import numpy as np

from hvd_sparse.collectives.contract import AllGather, Request
from hvd_sparse.errors import CorruptPayload

Result = TypeVar("Result")
Count = Callable[[int, int], None]
"""Is told how many bytes more than the arrays' own were sent, and how many came."""

HEAD = struct.Struct("<QQ")
GRAIN = 64
"""A room is a multiple of it."""
SPARE = 8
"""A part of what was needed, one in so many, is added: messages of warm steps differ by little."""
LARGE = 2
"""A room that is so many times as large as what is needed is too large ..."""
PATIENCE = 8
"""... if it is for so many collectives in a row."""
MOST_PADDED = 32_768
"""Bytes of a longer array are worth more than the time that ranks take to ask each other."""


class Room:
    """Length of the blocks of one name.

    Ranks that note the same lengths have the same room.

    Attributes
    ----------
    nbytes : that a block has at least; 0 before the first one
    """

    def __init__(self) -> None:
        self.nbytes = self._lately = self._times_too_large = 0

    def note(self, longest: int) -> None:
        """Take in what was needed, and make more room, or less, for what follows.

        Parameters
        ----------
        longest : bytes of the longest block without its padding
        """
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
    """Return the bytes of a block without padding."""
    return HEAD.size + content.nbytes


def write_block(content: np.ndarray, least: int = 0) -> np.ndarray:
    """Return an array's bytes as a block.

    Parameters
    ----------
    content : 1-D, contiguous, of any dtype
    least : bytes that the block has at least
    """
    block = np.zeros(max(least, needed(content)), np.uint8)
    HEAD.pack_into(block, 0, block.size, content.nbytes)  # type: ignore[arg-type]
    block[HEAD.size : needed(content)] = content.view(np.uint8)
    return block


def read_blocks(joined: np.ndarray, name: str) -> list[np.ndarray]:
    """Return the contents of blocks that a collective joined, as views.

    Parameters
    ----------
    joined : uint8, the blocks one behind the other
    name : of the collective, for errors

    Raises
    ------
    CorruptPayload : these are no whole blocks
    """
    contents, offset = [], 0
    while offset < joined.size:
        left = joined.size - offset
        size = length = 0
        if left >= HEAD.size:
            length, size = HEAD.unpack_from(joined[offset : offset + HEAD.size].tobytes())
        if not HEAD.size + size <= length <= left:
            raise CorruptPayload(
                f"the collective {name!r} brought a block that says it has {length} bytes with "
                f"{size} of content, where {left} are left: altered on its way"
            )
        start = offset + HEAD.size
        contents.append(joined[start : start + size])
        offset += length
    return contents


class Padding:
    """Padding of what a compressor's exchanges gather.

    Parameters
    ----------
    count : is told of the bytes that it costs
    """

    def __init__(self, count: Count) -> None:
        self._count = count
        self._rooms: defaultdict[tuple[int, int], Room] = defaultdict(Room)

    def carry(
        self, conversation: Generator[Request, np.ndarray, Result], bucket: int
    ) -> Generator[Request, np.ndarray, Result]:
        """Return an exchange whose gathered arrays travel as blocks.

        Parameters
        ----------
        conversation : the exchange
        bucket : its number, the same on every rank and at every step
        """
        phase, received = 0, None
        while True:
            try:
                request = next(conversation) if received is None else conversation.send(received)
            except StopIteration as stop:
                result: Result = stop.value
                return result
            if isinstance(request, AllGather):
                received = yield from self._gather(request.array, self._rooms[bucket, phase])
            else:
                received = yield request
            phase += 1

    def _gather(self, array: np.ndarray, room: Room) -> Generator[Request, np.ndarray, np.ndarray]:
        block = write_block(array, room.nbytes if room.nbytes <= MOST_PADDED else 0)
        joined = yield AllGather(block)
        try:
            contents = read_blocks(joined, "gather")
        except CorruptPayload:
            return joined  # the exchange refuses it at the place where it may raise
        # All ranks see all lengths, so all make the same room for the next step.
        room.note(max(map(needed, contents)))
        brought: np.ndarray = np.concatenate(contents).view(array.dtype)
        self._count(block.nbytes - array.nbytes, joined.nbytes - brought.nbytes)
        return brought
