"""Blocks: what a gather over a device carries, and how long it is."""

from __future__ import annotations

import numpy as np
import pytest

from hvd_sparse.collectives._blocks import (
    GRAIN,
    HEAD,
    LARGE,
    PATIENCE,
    Room,
    needed,
    read_blocks,
    write_block,
)
from hvd_sparse.errors import CorruptPayload

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


def test_a_block_has_the_length_that_is_asked_for():
    assert [write_block(each, 64).size for each in CONTENTS] == [64] * len(CONTENTS)
    assert write_block(CONTENTS[0]).size == needed(CONTENTS[0]) == HEAD.size + 5


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


def test_a_room_stays_while_lengths_differ_a_little():
    room = Room()
    rooms = set()
    for longest in (10_000, 10_900, 9_100, 11_000, 8_000) * 4:
        room.note(longest)
        rooms.add(room.nbytes)
        assert room.nbytes >= longest
    assert len(rooms) == 1
    assert room.nbytes % GRAIN == 0


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


def test_one_long_message_in_between_lets_a_room_stay():
    room = Room()
    room.note(100_000)
    large = room.nbytes
    for step in range(4 * PATIENCE):
        room.note(100_000 if step % (PATIENCE - 1) == 0 else 10)
        assert room.nbytes == large
