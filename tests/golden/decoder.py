"""A second reader of frames and messages in plain Python, from the documented layout alone."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

from golden import bodies
from golden.bodies import need

WIRE_VERSION = 1
FRAME_HEAD = 32
MESSAGE_HEAD = 32
VALUE_LETTERS = {1: "f", 2: "d"}


@dataclass(frozen=True)
class Frame:
    """One tensor's entries; ``value_type`` is "f" for float32 and "d" for float64."""

    value_type: str
    numel: int
    indices: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Message:
    """One rank's message: frames by the position of their tensor, or an error in words."""

    rank: int
    step: int
    configuration: int
    frames: dict[int, Frame]
    error: str | None


def read_frame(data: bytes) -> Frame:
    """The one frame that the bytes are."""
    frame, rest = split_frame(data)
    need(not rest, f"{len(rest)} bytes follow the frame")
    return frame


def split_frame(data: bytes) -> tuple[Frame, bytes]:
    """The frame that the bytes begin with, and the bytes behind it."""
    need(len(data) >= FRAME_HEAD, "shorter than a frame's header")
    need(data[0:2] == b"HS", "no frame starts like this")
    need(data[2] == WIRE_VERSION, f"wire version {data[2]}")
    need(data[3] in bodies.READERS, f"codec {data[3]}")
    need(data[4] in VALUE_LETTERS, f"value type {data[4]}")
    need(data[5] in (0, *bodies.FORMATS), f"value format {data[5]}")
    need(data[6:8] == bytes(2) and data[28:32] == bytes(4), "padding that is not zero")
    numel, count = struct.unpack("<II", data[8:16])
    (body_bytes,) = struct.unpack("<Q", data[16:24])
    (checksum,) = struct.unpack("<I", data[24:28])
    body = data[FRAME_HEAD : FRAME_HEAD + body_bytes]
    need(len(body) == body_bytes, "the body is cut short")
    need(zlib.crc32(data[0:24] + body) == checksum, "the checksum is another")
    letter = VALUE_LETTERS[data[4]]
    need(count <= numel, f"{count} entries of {numel}")
    indices, values = bodies.READERS[data[3]](letter, data[5], numel, count, body)
    return Frame(letter, numel, indices, values), data[FRAME_HEAD + body_bytes :]


def read_messages(data: bytes) -> list[Message]:
    """All messages that an allgather joined; that of rank 0 first."""
    messages = []
    while data:
        message, data = split_message(data)
        need(
            message.rank == len(messages),
            f"rank {message.rank}'s message stands in place {len(messages)}",
        )
        messages.append(message)
    return messages


def split_message(data: bytes) -> tuple[Message, bytes]:
    """The message that the bytes begin with, and the bytes behind it."""
    need(len(data) >= MESSAGE_HEAD + 4, "shorter than a message's header")
    need(data[0:3] == b"HSM", "no message starts like this")
    need(data[3] == WIRE_VERSION, f"wire version {data[3]}")
    need(data[4] in (0, 1), f"kind {data[4]}")
    need(data[5:8] == bytes(3), "padding that is not zero")
    rank, step, configuration, members = struct.unpack("<4I", data[8:24])
    (total,) = struct.unpack("<Q", data[24:32])
    head = MESSAGE_HEAD + 4 * members
    need(head + 4 <= total <= len(data), "the message is cut short")
    (checksum,) = struct.unpack("<I", data[head : head + 4])
    need(zlib.crc32(data[:head]) == checksum, "the header's checksum is another")
    positions = struct.unpack(f"<{members}I", data[MESSAGE_HEAD:head])
    body = data[head + 4 : total]
    error = _error(body) if data[4] == 1 else None
    frames = _frames(positions, body) if data[4] == 0 else {}
    return Message(rank, step, configuration, frames, error), data[total:]


def _frames(positions: tuple[int, ...], body: bytes) -> dict[int, Frame]:
    frames = {}
    for position in positions:
        frames[position], body = split_frame(body)
    need(not body, f"{len(body)} bytes follow the frames")
    return frames


def _error(body: bytes) -> str:
    need(len(body) >= 4, "an error without its checksum")
    (checksum,) = struct.unpack("<I", body[:4])
    need(zlib.crc32(body[4:]) == checksum, "the error's checksum is another")
    return body[4:].decode("utf-8")
