"""Padding: what a gather carries, and how long it is."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import worlds

from hvd_sparse.collectives.contract import AllGather, AllReduce
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.step.driver import Conversation
from hvd_sparse.wire.padding import (
    HEAD,
    LARGE,
    MOST_PADDED,
    PATIENCE,
    Padding,
    Room,
    read_blocks,
    write_block,
)

CONTENTS = [
    np.arange(5, dtype=np.uint8),
    np.empty(0, np.uint8),
    np.array([1.5, -2.5], np.float32),
    np.arange(3, dtype=np.int64),
]


@pytest.mark.parametrize("least", [0, 1, 30, 1000])
def test_contents_come_back(least):
    joined = np.concatenate([write_block(each, least) for each in CONTENTS])
    contents = read_blocks(joined, "x")
    assert len(contents) == len(CONTENTS)
    for content, found in zip(CONTENTS, contents):
        assert found.tobytes() == content.tobytes()


def test_blocks_that_are_not_whole_are_refused_with_their_name():
    whole = write_block(CONTENTS[0], 64)
    for joined in (whole[:-1], whole[:3], np.concatenate([whole, whole[:20]])):
        with pytest.raises(CorruptPayload, match=r"'gather.0' brought a block"):
            read_blocks(joined, "gather.0")
    for place in (0, 8):  # a length below the head's, and a content beyond the block's end
        altered = whole.copy()
        altered[place : place + 8] = np.array([15 if place == 0 else 49], "<u8").view(np.uint8)
        with pytest.raises(CorruptPayload):
            read_blocks(altered, "gather.0")


def test_a_room_grows_at_once_and_shrinks_after_a_while():
    room = Room()
    room.note(10_000)
    room.note(100_000)
    large = room.nbytes
    assert large >= 100_000
    for _ in range(PATIENCE - 1):
        room.note(large // LARGE - 1000)
        assert room.nbytes == large
    room.note(10)
    assert large // LARGE - 1000 <= room.nbytes < large


def gather_and_sum(content):
    gathered = yield AllGather(content)
    total = yield AllReduce(np.array([gathered.size]))
    return gathered, int(total[0])


def padded_steps(collective, lengths):
    """Exchange contents of these lengths; return them, the blocks' lengths, and the padding."""
    counted, blocks, brought = Counter(), [], []
    padding = Padding(lambda sent, received: counted.update(sent=sent, received=received))
    for length in lengths:
        content = np.arange(length + collective.rank, dtype=np.uint8)
        carried = padding.carry(gather_and_sum(content), bucket=3)
        conversation = Conversation(carried, Noting(collective, blocks), "x")
        brought.append(conversation.finish(worlds.TIMEOUT_S))
    return brought, blocks, counted


class Noting:
    def __init__(self, collective, blocks):
        self.allreduce, self._gather, self._blocks = (
            collective.allreduce,
            collective.allgather,
            blocks,
        )

    def allgather(self, array, name):
        self._blocks.append(array.size)
        return self._gather(array, name)


def test_an_exchange_brings_the_same_and_its_blocks_keep_their_length():
    lengths = [200, 190, 205, 199, 210]
    for brought, blocks, counted in worlds.run(2, lambda c: padded_steps(c, lengths)):
        for (gathered, total), length in zip(brought, lengths):
            expected = [np.arange(length + rank, dtype=np.uint8) for rank in range(2)]
            assert gathered.tobytes() == np.concatenate(expected).tobytes()
            assert total == 2 * (2 * length + 1)
        assert len(set(blocks[1:])) == 1  # the first block is as long as its content
        assert counted["sent"] + sum(lengths) == pytest.approx(sum(blocks), abs=len(lengths))
        assert counted["received"] > counted["sent"]


def test_long_arrays_are_not_padded():
    length = MOST_PADDED + 1000
    lengths = [length, length - 100, length]
    for _, blocks, _ in worlds.run(2, lambda c: padded_steps(c, lengths)):
        assert max(blocks) <= length + 1 + HEAD.size and len(set(blocks)) == 2


def test_an_exchange_is_given_blocks_that_are_not_whole_as_they_are():
    conversation = Padding(lambda *_: None).carry(gather_and_sum(CONTENTS[0]), bucket=0)
    block = next(conversation).array.copy()
    block[0] = 3
    assert conversation.send(block).array.tolist() == [block.size]
