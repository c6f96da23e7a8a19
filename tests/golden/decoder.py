"""A second reader of frames and messages in plain Python, from the documented layout."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from golden import bodies

FRAME_HEAD = 32
MESSAGE_HEAD = 32
VALUE_LETTERS = {1: "f", 2: "d"}


@dataclass(frozen=True)
class Frame:
    value_type: str
    numel: int
    indices: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Message:
    """One rank's message: frames by the position of their tensor, or an error text."""

    rank: int
    step: int
    configuration: int
    frames: dict[int, Frame]
    error: str | None


def read_frame(data: bytes) -> Frame:
    frame, rest = split_frame(data)
    assert not rest
    return frame


def split_frame(data: bytes) -> tuple[Frame, bytes]:
    magic, version, codec, kind, form, numel, count, body_bytes, checksum = struct.unpack(
        "<2s4B2xIIQI4x", data[:FRAME_HEAD]
    )
    body = data[FRAME_HEAD : FRAME_HEAD + body_bytes]
    assert (magic, version, len(body)) == (b"HS", 1, body_bytes)
    assert zlib.crc32(data[:24] + body) == checksum
    letter = VALUE_LETTERS[kind]
    indices, values = bodies.READERS[codec](letter, form, numel, count, body)
    assert len(indices) == len(values) == count
    return Frame(letter, numel, indices, values), data[FRAME_HEAD + body_bytes :]


def read_messages(data: bytes) -> list[Message]:
    messages = []
    while data:
        message, data = split_message(data)
        messages.append(message)
    return messages


def split_message(data: bytes) -> tuple[Message, bytes]:
    magic, version, is_error, rank, step, configuration, members, total = struct.unpack(
        "<3sBB3xIIIIQ", data[:MESSAGE_HEAD]
    )
    head = MESSAGE_HEAD + 4 * members
    assert (magic, version) == (b"HSM", 1)
    assert struct.pack("<I", zlib.crc32(data[:head])) == data[head : head + 4]
    body, frames, error = data[head + 4 : total], {}, None
    if is_error:
        assert struct.pack("<I", zlib.crc32(body[4:])) == body[:4]
        error, body = body[4:].decode("utf-8"), b""
    for position in struct.unpack(f"<{members}I", data[MESSAGE_HEAD:head]):
        frames[position], body = split_frame(body)
    assert not body
    return Message(rank, step, configuration, frames, error), data[total:]
