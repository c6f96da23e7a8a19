"""A second reader of frames and messages in plain Python, from the documented layout. It returns
contents as the manifest has them."""

from __future__ import annotations

import struct
import zlib

from golden import bodies

FRAME_HEAD = 32
MESSAGE_HEAD = 32
VALUE_TYPES = {1: ("f", "float32"), 2: ("d", "float64")}
Content = "dict[str, object]"


def read_frame(data: bytes) -> Content:
    frame, rest = split_frame(data)
    assert not rest
    return frame


def split_frame(data: bytes) -> tuple[Content, bytes]:
    magic, version, codec, kind, form, numel, count, body_bytes, checksum = struct.unpack(
        "<2s4B2xIIQI4x", data[:FRAME_HEAD]
    )
    body = data[FRAME_HEAD : FRAME_HEAD + body_bytes]
    assert (magic, version, len(body)) == (b"HS", 1, body_bytes)
    assert zlib.crc32(data[:24] + body) == checksum
    letter, name = VALUE_TYPES[kind]
    indices, values = bodies.READERS[codec](letter, form, numel, count, body)
    assert len(indices) == len(values) == count
    frame = {"value_type": name, "numel": numel, "indices": list(indices)}
    return {**frame, "values": list(map(float.hex, values))}, data[FRAME_HEAD + body_bytes :]


def read_messages(data: bytes) -> list[Content]:
    messages = []
    while data:
        message, data = split_message(data)
        messages.append(message)
    return messages


def split_message(data: bytes) -> tuple[Content, bytes]:
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
        frames[str(position)], body = split_frame(body)
    assert not body
    sent = {"rank": rank, "step": step, "configuration": configuration}
    return {**sent, "frames": frames, "error": error}, data[total:]
