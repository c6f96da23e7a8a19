"""Frames: encoded selections with a header of 32 bytes.

    offset  bytes  content (little-endian)
    0       2      b"HS"
    2       1      wire version
    3       1      codec number
    4       1      value type: 1 float32, 2 float64
    5       1      value format: 0 as the value type, 1 float16, 2 bfloat16, 3 int8,
                   4 int4, 5 int2
    6       2      zero
    8       4      numel: number of the tensor's entries
    12      4      count: number of encoded entries
    16      8      number of bytes of the body
    24      4      CRC-32 of bytes 0 to 23 and of the body
    28      4      zero
    32             body

Two builds of hvd_sparse are compatible if and only if they have the same wire version.
"""

from __future__ import annotations

import operator
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection

# CRC-32 (ISO 3309). isal is ten times as fast as zlib. With zlib (2 to 3 GB/s), the checksum would
# take longer than the rest of a codec.
if TYPE_CHECKING:
    from zlib import crc32
else:
    try:
        from isal.isal_zlib import crc32
    except ImportError:
        from zlib import crc32

MAGIC = b"HS"
WIRE_VERSION = 1
HEADER_BYTES = 32
_HEADER = struct.Struct("<2sBBBBHIIQII")
_CHECKED = struct.Struct("<2sBBBBHIIQ")
_CHECKSUM = struct.Struct("<I4x")
body_bytes_at = struct.Struct("<16xQ").unpack_from
"""Return, as a tuple, the number of bytes that the header at an offset of a buffer announces."""

VALUE_TYPES: dict[int, np.dtype] = {1: np.dtype("<f4"), 2: np.dtype("<f8")}
VALUE_NUMBERS = {dtype: number for number, dtype in VALUE_TYPES.items()}
AS_TYPE = 0
VALUE_FORMATS = {"float32": AS_TYPE, "float16": 1, "bfloat16": 2, "int8": 3, "int4": 4, "int2": 5}
FORMAT_NUMBERS = frozenset(VALUE_FORMATS.values())

INDICES, VALUES = 240, 241
"""Numbers in the headers of frames with only indices, and of frames with only values, in place of a
codec's number. Exchanges use such frames."""

FEW = 32
"""Largest number of indices that ``need_ascending`` checks without numpy."""


class Coding(Protocol):
    """The attributes and methods of a ``Codec`` that frames and messages use."""

    id: ClassVar[str]

    @property
    def number(self) -> int | None: ...

    def decode(self, buffer: np.ndarray, kernels: Packers) -> Selection: ...

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float: ...


@dataclass(eq=False)
class Frame:
    """A frame that was read and checked. ``body`` is a view of the buffer that was read."""

    codec: int
    value_type: np.dtype
    value_format: int
    numel: int
    count: int
    body: np.ndarray


def write_frame(
    codec: int,
    value_type: np.dtype,
    numel: int,
    count: int,
    parts: list[np.ndarray],
    value_format: int = AS_TYPE,
) -> np.ndarray:
    size = 0
    for part in parts:
        size += part.nbytes
    header = _CHECKED.pack(
        MAGIC, WIRE_VERSION, codec, VALUE_NUMBERS[value_type], value_format, 0, numel, count, size
    )
    # Join the parts as bytes: for few entries, this is several times as fast as numpy.
    whole = bytearray().join([header, bytes(_CHECKSUM.size), *cast("list[bytes]", parts)])
    # The checksum covers the header too, so that an altered count is found.
    checksum = crc32(memoryview(whole)[HEADER_BYTES:], crc32(header))
    _CHECKSUM.pack_into(whole, _CHECKED.size, checksum)
    return np.frombuffer(whole, np.uint8)


@lru_cache(maxsize=64)
def frame_head(codec: Coding, value_type: np.dtype) -> int:
    """Return the first 8 bytes of the header, as a little-endian integer. These bytes are equal in
    all frames that this codec writes for values of this dtype. The kernel ``send_rows`` writes
    them, and ``sum_rows`` checks them."""
    header = _CHECKED.pack(
        MAGIC, WIRE_VERSION, codec.number, VALUE_NUMBERS[value_type], AS_TYPE, 0, 0, 0, 0
    )
    return int.from_bytes(header[:8], "little")


def read_header(buffer: np.ndarray) -> tuple[int, ...]:
    """Return all fields of the header at the start of a contiguous buffer, in their order. The
    checksum is not compared. Raises CorruptPayload if the frame is truncated, or if no frame starts
    there."""
    if buffer.size < HEADER_BYTES:
        raise CorruptPayload(
            f"a payload of {buffer.size} bytes is shorter than its {HEADER_BYTES}-byte header"
        )
    fields = magic, version, _, _, _, _, _, _, body_bytes, _, _ = _HEADER.unpack_from(buffer.data)
    if magic != MAGIC:
        raise CorruptPayload(
            f"a payload starts with {magic!r}, not {MAGIC!r}: these bytes are not hvd_sparse's"
        )
    if version != WIRE_VERSION:
        raise CorruptPayload(
            f"a payload has wire version {version}, this build reads {WIRE_VERSION}: install one "
            "version of hvd_sparse on all ranks"
        )
    if body_bytes > buffer.size - HEADER_BYTES:
        raise CorruptPayload(
            f"a payload is truncated: its header announces {body_bytes} bytes, but "
            f"{buffer.size - HEADER_BYTES} follow"
        )
    return fields


def read_frame(buffer: np.ndarray, *, has_checksum: bool = True) -> Frame:
    """Return the frame at the start of a buffer. Raises CorruptPayload if the bytes are not a whole
    frame or, with ``has_checksum``, if they do not match the frame's checksum."""
    buffer = np.ascontiguousarray(buffer)  # struct and crc32 need contiguous memory
    # Check the length before any slice or allocation, because the bytes may come from any source.
    _, _, codec, number, value_format, gap, numel, count, body_bytes, checksum, end = read_header(
        buffer
    )
    # Refuse bytes that no encoder writes, even unused ones, so that encoding is canonical.
    if gap or end or number not in VALUE_TYPES or value_format not in FORMAT_NUMBERS:
        raise CorruptPayload("a payload's header has values that no encoder writes")
    data, stop = buffer.data, HEADER_BYTES + body_bytes
    if has_checksum and checksum != crc32(data[HEADER_BYTES:stop], crc32(data[: _CHECKED.size])):
        raise CorruptPayload(
            "a payload's checksum does not match its bytes: it was altered on its way"
        )
    body = buffer[HEADER_BYTES:stop]
    return Frame(codec, VALUE_TYPES[number], value_format, numel, count, body)


def open_frame(buffer: np.ndarray, codec: Coding, value_format: int = AS_TYPE) -> Frame:
    """Return the frame that fills a buffer. Raises CorruptPayload unless ``codec`` wrote the frame,
    with values in this format (a number of ``VALUE_FORMATS``)."""
    # The checksum is right, so a wrong codec number means another codec, not altered bytes.
    frame = read_frame(buffer)
    if frame.codec != codec.number or HEADER_BYTES + frame.body.size != buffer.size:
        raise CorruptPayload(
            f"a payload of codec {frame.codec} and {buffer.size} bytes is no {codec.id} payload"
        )
    if frame.value_format != value_format:
        raise CorruptPayload(
            f"a payload has values of format {frame.value_format}, and {codec!r} reads "
            f"{value_format}"
        )
    if frame.count > frame.numel:
        raise CorruptPayload(
            f"a payload has {frame.count} entries, more than the {frame.numel} of the tensor"
        )
    return frame


def need(is_so: bool | np.bool_, otherwise: str) -> None:
    if not is_so:
        raise CorruptPayload(otherwise)


def need_size(frame: Frame, expected: int) -> None:
    if frame.body.size != expected:
        raise CorruptPayload(
            f"{frame.body.size} bytes cannot hold exactly {frame.count} entries of {frame.numel}"
        )


def need_ascending(indices: np.ndarray, numel: int) -> None:
    size = indices.size
    if not size:
        return
    if size <= FEW:  # plain numbers, because for few indices they are faster than numpy's calls
        numbers = indices.tolist()
        ascending, last = all(map(operator.lt, numbers, numbers[1:])), numbers[-1]
    else:
        ascending = np.count_nonzero(indices[1:] > indices[:-1]) == size - 1
        last = indices[-1]
    if last >= numel or not ascending:
        raise CorruptPayload(
            f"the indices do not ascend, or exceed the {numel} entries of the tensor"
        )


def decode_for(
    key: str, numel: int, dtype: DTypeLike, codec: Coding, buffer: np.ndarray, kernels: Packers
) -> Selection:
    """Decode a frame of the tensor ``key``, and return the selection. Raises CorruptPayload unless
    the frame is valid, and is for ``numel`` entries of this dtype. The header is checked before the
    codec decodes, because a corrupt frame of few bytes may announce 2**32 entries."""
    _, _, _, number, _, _, announced, *_others = read_header(np.ascontiguousarray(buffer))
    announced_dtype = VALUE_TYPES.get(number)
    if announced != numel or announced_dtype != dtype:
        read_frame(buffer)  # if the header was altered, this raises the error that says so
        raise CorruptPayload(
            f"tensor {key!r} has {numel} entries of {np.dtype(dtype)}, but a payload for it has "
            f"{announced} of {announced_dtype}"
        )
    return codec.decode(buffer, kernels)


def write_indices(selection: Selection) -> np.ndarray:
    indices, values = selection.indices.astype(np.uint32, copy=False), selection.values
    return write_frame(INDICES, values.dtype, selection.numel, selection.count, [indices])


def read_indices(buffer: np.ndarray, numel: int) -> np.ndarray:
    frame = _read_whole(buffer, INDICES, numel)
    need_size(frame, 4 * frame.count)
    indices = frame.body.view("<u4").astype(np.uint32)
    need_ascending(indices, numel)
    return indices


def write_values(values: np.ndarray) -> np.ndarray:
    return write_frame(VALUES, values.dtype, values.size, values.size, [values])


def read_values(buffer: np.ndarray, numel: int, dtype: DTypeLike) -> np.ndarray:
    frame = _read_whole(buffer, VALUES, numel)
    need(frame.count == numel, f"the payload has {frame.count} values for {numel} entries")
    need(
        frame.value_type == np.dtype(dtype),
        f"the payload has values of {frame.value_type} instead of {np.dtype(dtype)}",
    )
    need_size(frame, frame.count * frame.value_type.itemsize)
    return frame.body.view(frame.value_type).astype(dtype, copy=False)


def _read_whole(buffer: np.ndarray, number: int, numel: int) -> Frame:
    frame = read_frame(buffer)
    is_whole = HEADER_BYTES + frame.body.size == buffer.size and frame.value_format == AS_TYPE
    if frame.codec != number or frame.numel != numel or not is_whole:
        raise CorruptPayload(
            f"a payload of kind {frame.codec} with {frame.count} of {frame.numel} entries does not "
            f"fit a tensor of {numel} entries, which expects kind {number}"
        )
    return frame
