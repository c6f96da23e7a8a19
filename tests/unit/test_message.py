"""Messages, checksums and padding: bytes come apart as they were joined; damage is refused."""

import os
import zlib

import numpy as np
import pytest
import worlds
from conformance.codec_checks import selection_of
from conformance.fuzzing import repaired_message
from programs import run_python

from hvd_sparse.collectives.contract import MOST_BYTES
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.message import ERROR_TEXT_LIMIT, split_messages, write_error, write_message
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

CODEC = CODECS.create("index_value")


def frame(count):
    return CODEC.encode(selection_of(range(count), 10))


def test_long_errors_are_cut_even_within_a_letter_and_those_with_a_path_that_is_no_unicode_arrive():
    text = "ä" * ERROR_TEXT_LIMIT + "end"
    (message,) = split_messages(write_error(0, 0, 0, "x" + text), range(1))
    assert message.error.startswith("xää")
    assert len(message.error.encode()) <= ERROR_TEXT_LIMIT + 3
    text = f"no such file: {os.fsdecode(b'caf' + bytes([0xE9]))}"  # an undecodable byte
    (message,) = split_messages(write_error(0, 0, 0, text), range(1))
    assert message.error == r"no such file: caf\udce9"


def test_steps_beyond_32_bits_wrap_rather_than_fail():
    (message,) = split_messages(write_message(0, 2**32 + 5, 0, {}), range(1))
    assert message.step == 5


TWO = write_message(0, 7, 9, {}, (2, 5)).tobytes()
ERROR = write_error(0, 3, 5, "größe").tobytes()


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (TWO[:32] + TWO[36:40] + TWO[32:36] + TWO[40:], "members of a message do not ascend"),
        (TWO[:32] + 2 * TWO[32:36] + TWO[40:], "members of a message do not ascend"),
        (TWO[:5] + b"\1" + TWO[6:], "values that no rank writes"),
        (TWO[:4] + b"\1" + TWO[5:], "values that no rank writes"),
        (TWO + bytes(3), "3 bytes follow the 0 frames"),
        (ERROR + b"\xff", "no UTF-8"),
        (ERROR + bytes(ERROR_TEXT_LIMIT), "longer than any that is written"),
    ],
    ids=[
        *("descending", "twice", "padding", "error-with-members", "behind-the-frames"),
        *("no-letters", "long-error"),
    ],
)
def test_what_no_rank_writes_is_refused_though_its_checksums_are_right(message, words):
    with pytest.raises(CorruptPayload, match=words):
        split_messages(np.frombuffer(repaired_message(message), np.uint8), range(1))


@pytest.mark.parametrize("start", [b"HSm" + TWO[3:4], TWO[:3] + bytes([TWO[3] + 1])])
def test_a_message_of_another_version_is_refused_though_its_checksum_is_right(start):
    head = start + TWO[4:40]
    message = head + zlib.crc32(head).to_bytes(4, "little") + TWO[44:]
    with pytest.raises(CorruptPayload, match="install one version on all ranks"):
        split_messages(np.frombuffer(message, np.uint8), range(1))


def test_a_member_without_a_frame_is_a_member_all_the_same():
    written = write_message(0, 7, 99, {4: frame(3)}, members=[9, 4, 2])
    (message,) = split_messages(written, range(1))
    assert (message.members, list(message.frames)) == ((2, 4, 9), [4])
    assert message.frame(4).tobytes() == frame(3).tobytes()
    with pytest.raises(CorruptPayload, match="rank 0 lacks a frame for tensor number 9"):
        message.frame(9)


def test_the_messages_of_some_ranks_come_apart_too():
    joined = np.concatenate([write_message(rank, 0, 0, {}) for rank in (1, 4)])
    assert [message.rank for message in split_messages(joined, [1, 4])] == [1, 4]
    with pytest.raises(CorruptPayload, match="is from rank 4, but must be from rank 5"):
        split_messages(joined, [1, 5])


@pytest.mark.parametrize(("isal_is_there", "module"), [(True, "isal.isal_zlib"), (False, "zlib")])
def test_isal_is_used_if_it_is_there_and_zlib_otherwise(isal_is_there, module):
    if isal_is_there:
        pytest.importorskip("isal", reason="it is the library that is looked for")
    hide = "" if isal_is_there else "sys.modules['isal'] = None; "
    script = "from hvd_sparse.wire.frame import crc32; print(crc32.__module__, crc32(b'hvd'))"
    run = run_python("-c", f"import sys; {hide}{script}")
    assert run.stdout.split() == [module, str(zlib.crc32(b"hvd"))]


CONTENT = np.arange(5, dtype=np.uint8)


def test_blocks_that_are_not_whole_are_not_read():
    whole = write_block(CONTENT, 64)
    for joined in (whole[:-1], whole[:3], np.concatenate([whole, whole[:20]])):
        assert read_blocks(joined) is None
    for place in (0, 8):  # a length below the head's, and a content beyond the block's end
        altered = whole.copy()
        altered[place : place + 8] = np.array([15 if place == 0 else 49], "<u8").view(np.uint8)
        assert read_blocks(altered) is None


def test_a_room_grows_at_once_and_shrinks_after_a_while_and_fits_into_one_collective():
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
    assert room.for_ranks(2) == room.nbytes
    room.note(MOST_BYTES // 2 - 100)
    assert 2 * room.nbytes > MOST_BYTES >= 2 * room.for_ranks(2) > MOST_BYTES - 2


def padded_steps(collective, lengths, dtype=np.uint8):
    padding, blocks, brought = Padding(), [], []
    for length in lengths:
        content = np.arange(length + collective.rank, dtype=dtype)
        block = padding.pack(content, (3, 0), 2)
        blocks.append(block.size)
        joined = collective.allgather(block, "x").wait(worlds.TIMEOUT_S)
        brought.append(padding.unpack(joined, (3, 0), content.dtype))
    return brought, blocks


def test_an_exchange_brings_the_same_and_its_blocks_keep_their_length():
    lengths = [200, 190, 205, 199, 210, 0]  # the last block of rank 0 is empty
    for brought, blocks in worlds.run(2, lambda c: padded_steps(c, lengths, np.float32)):
        for gathered, length in zip(brought, lengths):
            expected = [np.arange(length + rank, dtype=np.float32) for rank in range(2)]
            assert worlds.same_bits(gathered, np.concatenate(expected))
        assert len(set(blocks[1:])) == 1  # the first block is as long as its content


def test_long_arrays_are_not_padded():
    length = MOST_PADDED + 1000
    lengths = [length, length - 100, length]
    for _, blocks in worlds.run(2, lambda c: padded_steps(c, lengths)):
        assert max(blocks) <= length + 1 + HEAD.size and len(set(blocks)) == 2


def test_an_exchange_is_given_blocks_that_are_not_whole_as_they_are():
    padding = Padding()
    block = padding.pack(CONTENT, (0, 0), 1)
    block[0] = 3
    assert padding.unpack(block, (0, 0), CONTENT.dtype) is block
