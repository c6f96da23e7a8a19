"""Messages and checksums: bytes are split as they were joined, and damage is refused."""

from __future__ import annotations

import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from conformance.codec_checks import selection_of
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.checksum import crc32
from hvd_sparse.wire.message import (
    ERROR_TEXT_LIMIT,
    overhead_bytes,
    split_messages,
    write_error,
    write_message,
)

CODEC = CODECS.create("index_value")


def frame(count, seed=0, dtype="float32"):
    return CODEC.encode(selection_of(range(count), 10, dtype, seed))


@st.composite
def messages(draw, rank):
    step, configuration = draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 2**32 - 1))
    if draw(st.booleans()):
        text = draw(st.text(max_size=30))
        return write_error(rank, step, configuration, text), (
            rank,
            step,
            configuration,
            (),
            [],
            text,
        )
    positions = draw(st.sets(st.integers(0, 2**31 - 1), max_size=4))
    frames = {position: frame(draw(st.integers(0, 10)), position) for position in positions}
    order = sorted(frames)
    expected = (rank, step, configuration, tuple(order), [frames[p].tobytes() for p in order], None)
    return write_message(rank, step, configuration, frames), expected


@given(data=st.data(), world_size=st.integers(1, 5))
def test_messages_of_all_ranks_come_apart_as_they_were(data, world_size):
    written = [data.draw(messages(rank)) for rank in range(world_size)]
    read = split_messages(np.concatenate([buffer for buffer, _ in written]), range(world_size))
    for got, (_, expected) in zip(read, written):
        frames = [f.tobytes() for f in got.frames.values()]
        assert (got.rank, got.step, got.configuration, got.members, frames, got.error) == expected


def test_messages_in_another_order_than_the_ranks_are_refused():
    swapped = np.concatenate([write_message(rank, 0, 0, {}) for rank in (1, 0)])
    with pytest.raises(
        CorruptPayload, match="message 0 of a collective says that it is rank 1's, not rank 0's"
    ):
        split_messages(swapped, range(2))


def test_bytes_between_the_frames_and_the_end_of_a_message_are_refused():
    head = struct.pack(
        "<3sBB3xIIIIQ", b"HSM", 1, 0, 0, 0, 0, 1, 32 + 4 + 4 + frame(2).size + 3
    ) + struct.pack("<I", 7)
    forged = head + struct.pack("<I", zlib.crc32(head)) + frame(2).tobytes()
    with pytest.raises(CorruptPayload, match="3 bytes follow the 1 frames"):
        split_messages(np.frombuffer(forged + bytes(3), np.uint8), range(1))


@pytest.mark.parametrize("members", [0, 1, 5])
def test_overhead_is_what_a_message_has_besides_its_frames(members):
    frames = {position: frame(position) for position in range(members)}
    message = write_message(0, 0, 0, frames)
    assert message.size == overhead_bytes(members) + sum(f.size for f in frames.values())


def test_long_errors_are_cut_and_stay_readable_even_within_a_letter():
    text = "ä" * ERROR_TEXT_LIMIT + "end"
    (message,) = split_messages(write_error(0, 0, 0, "x" + text), range(1))
    assert message.error.startswith("xää")
    assert len(message.error.encode()) <= ERROR_TEXT_LIMIT + 3


def test_steps_beyond_32_bits_wrap_rather_than_fail():
    (message,) = split_messages(write_message(0, 2**32 + 5, 0, {}), range(1))
    assert message.step == 5


def forged(members: bytes, body: bytes, *, kind=0, padding=bytes(3)) -> np.ndarray:
    count = len(members) // 4
    head = (
        struct.pack(
            "<3sBB3sIIIIQ", b"HSM", 1, kind, padding, 0, 7, 9, count, 36 + len(members) + len(body)
        )
        + members
    )
    return np.frombuffer(head + struct.pack("<I", zlib.crc32(head)) + body, np.uint8)


def error_body(text: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(text)) + text


BOTH = frame(1).tobytes() + frame(2).tobytes()


def test_forgeries_without_a_fault_are_read():
    """Or the test below could pass for the wrong reason."""
    (message,) = split_messages(forged(struct.pack("<II", 2, 5), BOTH), range(1))
    assert message.members == (2, 5)
    (message,) = split_messages(forged(b"", error_body("größe".encode()), kind=1), range(1))
    assert message.error == "größe"


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (forged(struct.pack("<II", 5, 2), BOTH), "members of a message do not ascend"),
        (forged(struct.pack("<II", 5, 5), BOTH), "members of a message do not ascend"),
        (forged(b"", b"", padding=b"\1\0\0"), "values that no rank writes"),
        (forged(struct.pack("<I", 2), error_body(b"no"), kind=1), "values that no rank writes"),
        (forged(b"", error_body(b"\xff\xfe"), kind=1), "no UTF-8"),
        (
            forged(b"", error_body(b"x" * (ERROR_TEXT_LIMIT + 1)), kind=1),
            "longer than any that is written",
        ),
    ],
    ids=["descending", "twice", "padding", "error-with-members", "no-letters", "long-error"],
)
def test_what_no_rank_writes_is_refused_though_its_checksums_are_right(message, words):
    with pytest.raises(CorruptPayload, match=words):
        split_messages(message, range(1))


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
    with pytest.raises(CorruptPayload, match="says that it is rank 4's, not rank 5's"):
        split_messages(joined, [1, 5])


def test_it_is_the_crc_32_of_the_standard():
    assert crc32(b"123456789") == 0xCBF43926


@pytest.mark.parametrize("size", [0, 1, 3, 24, 1000, 65_537])
def test_every_length_and_continuation_is_zlibs(size):
    data = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
    assert crc32(data.data) == zlib.crc32(data.data)
    assert crc32(data[size // 3 :].data, crc32(data[: size // 3].data)) == zlib.crc32(data.data)


@pytest.mark.parametrize(("isal_is_there", "module"), [(True, "isal.isal_zlib"), (False, "zlib")])
def test_isal_is_used_if_it_is_there_and_zlib_otherwise(isal_is_there, module):
    if isal_is_there:
        pytest.importorskip("isal", reason="it is the library that is looked for")
    hide = "" if isal_is_there else "sys.modules['isal'] = None; "
    script = (
        f"import sys; {hide}from hvd_sparse.wire.checksum import crc32; "
        "print(crc32.__module__, crc32(b'hvd'))"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == [module, str(zlib.crc32(b"hvd"))]
