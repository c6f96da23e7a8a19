"""The frame around every encoded selection: 32 bytes that say what follows and whether it arrived whole.

    offset  bytes  content (little-endian)
    0       2      b"HS"
    2       1      wire version
    3       1      codec number
    4       1      value type: 1 float32, 2 float64
    5       3      zero
    8       4      numel
    12      4      count
    16      8      body bytes
    24      4      CRC-32 of bytes 0 to 23 and of the body
    28      4      zero
    32             body

Two builds understand each other exactly when they have the same wire version.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from ...errors import CorruptPayload
from ..checksum import crc32

MAGIC = b"HS"
WIRE_VERSION = 1
HEADER_BYTES = 32
_FIELDS = struct.Struct("<2sBBB3xIIQ")
_CHECK = struct.Struct("<I4x")

VALUE_TYPES: dict[int, np.dtype] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
VALUE_NUMBERS = {dtype: number for number, dtype in VALUE_TYPES.items()}


@dataclass(frozen=True)
class Frame:
    """A frame that was read and found whole; ``body`` is a view of the buffer."""

    codec: int
    value_type: np.dtype
    numel: int
    count: int
    body: np.ndarray

    @property
    def total_bytes(self) -> int:
        return HEADER_BYTES + self.body.size


def write_frame(codec: int, value_type: np.dtype, numel: int, count: int, parts: list[np.ndarray]) -> np.ndarray:
    """One uint8 buffer: header, then the parts one after the other."""
    body_bytes = sum(part.nbytes for part in parts)
    buffer = np.empty(HEADER_BYTES + body_bytes, np.uint8)
    offset = HEADER_BYTES
    for part in parts:
        buffer[offset : offset + part.nbytes] = np.ascontiguousarray(part).view(np.uint8)
        offset += part.nbytes
    header = _FIELDS.pack(MAGIC, WIRE_VERSION, codec, VALUE_NUMBERS[value_type], numel, count, body_bytes)
    checksum = crc32(buffer[HEADER_BYTES:].data, crc32(header))
    buffer[:HEADER_BYTES] = np.frombuffer(header + _CHECK.pack(checksum), np.uint8)
    return buffer


def measure_frame(buffer: np.ndarray) -> int:
    """Bytes of the frame at the start of a buffer, which may go on behind it; its checksum is left to ``read_frame``."""
    if buffer.size < HEADER_BYTES:
        raise CorruptPayload(f"a payload of {buffer.size} bytes is shorter than its {HEADER_BYTES}-byte header")
    magic, version, _, _, _, _, body_bytes = _FIELDS.unpack_from(buffer[:HEADER_BYTES].tobytes())
    if magic != MAGIC:
        raise CorruptPayload(f"a payload starts with {magic!r}, not {MAGIC!r}: these bytes are not hvd_sparse's")
    if version != WIRE_VERSION:
        raise CorruptPayload(
            f"a payload has wire version {version}, this build reads {WIRE_VERSION}: "
            "install one version of hvd_sparse on all ranks"
        )
    if body_bytes > buffer.size - HEADER_BYTES:
        raise CorruptPayload(
            f"a payload announces {body_bytes} bytes and {buffer.size - HEADER_BYTES} follow: truncated"
        )
    return int(HEADER_BYTES + body_bytes)


def read_frame(buffer: np.ndarray) -> Frame:
    """The frame at the start of a buffer, which may go on behind it; CorruptPayload if it is not whole."""
    total_bytes = measure_frame(buffer)
    header = buffer[:HEADER_BYTES].tobytes()
    _, _, codec, value_number, numel, count, _ = _FIELDS.unpack_from(header)
    if header[5:8] != b"\0\0\0" or header[28:] != b"\0\0\0\0" or value_number not in VALUE_TYPES:
        raise CorruptPayload("a payload's header has values that no encoder writes")
    body = buffer[HEADER_BYTES:total_bytes]
    checksum = crc32(np.ascontiguousarray(body).data, crc32(header[: _FIELDS.size]))
    if checksum != _CHECK.unpack_from(header, _FIELDS.size)[0]:
        raise CorruptPayload("a payload's checksum does not match its bytes: altered on its way")
    return Frame(codec, VALUE_TYPES[value_number], numel, count, body)
