"""Messages. A message has the entries that one rank sends of one bucket (tensors that share
messages) in one step, or the text of the rank's error.

    offset  bytes     content (little-endian)
    0       3         b"HSM"
    3       1         wire version
    4       1         kind: 0 entries, 1 the text of an error
    5       3         zero
    8       4         rank
    12      4         step: largest number of completed steps of the bucket's tensors
    16      4         configuration: CRC-32 of the configuration's digest
    20      4         number of members: tensors of the bucket that are sent sparse in this step
    24      8         number of bytes of the whole message
    32      4*members position of every member among the registered tensors, ascending, plus 2**31
                      if the member has no frame in this message
    then    4         CRC-32 of all bytes before
    then              kind 0: the members' frames (``wire.frame``), concatenated. A member has no
                      frame if its gradient has NaN or Inf, or if a sum of several ranks' entries
                      overflows. Some phases of an exchange also send members without a frame
                      kind 1: no members; CRC-32 (4 bytes) of the text, then the text in UTF-8

Messages contain their length, because allgather and alltoall concatenate all ranks' messages.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.wire.frame import HEADER_BYTES, WIRE_VERSION, Coding, body_bytes_at, crc32

MAGIC = b"HSM"
_HEAD = struct.Struct("<3sBB3xIIIIQ")
_CRC = struct.Struct("<I")
OVERHEAD_BYTES = _HEAD.size + _CRC.size
"""Number of bytes of a message without members and frames."""
ENTRIES, ERROR = 0, 1
ERROR_TEXT_LIMIT = 4096
WITHOUT_FRAME = 2**31
"""Number added to the position of a member that has no frame in this message."""


@dataclass(frozen=True)
class Message:
    """A message that was read and checked. ``frames`` maps tensor positions to views of the buffer
    that was read. ``error`` is the text of the rank's error, or None."""

    rank: int
    step: int
    configuration: int
    members: tuple[int, ...]
    frames: dict[int, np.ndarray]
    error: str | None

    def frame(self, position: int) -> np.ndarray:
        frame = self.frames.get(position)
        if frame is None:
            raise CorruptPayload(
                f"the message of rank {self.rank} lacks a frame for tensor number {position}"
            )
        return frame


def overhead_bytes(members: int) -> int:
    return OVERHEAD_BYTES + 4 * members


@lru_cache(maxsize=4096)  # called at every step of a tensor
def capacity(
    codec: Coding, wanted: int, numel: int, value_bytes: int, world_size: int, gathered_bytes: int
) -> int:
    """Return how many entries of a tensor a rank may send: ``wanted``, unless the messages of all
    ranks together are then expected to have more than ``gathered_bytes`` bytes. In this case,
    return the largest number that keeps this limit; 0 if even one entry needs more bytes."""

    def nbytes(count: int) -> float:
        return message_bytes(codec, count, numel, value_bytes)

    budget = gathered_bytes / world_size
    if nbytes(wanted) <= budget:
        return wanted
    # A body grows with its number of entries, but a body of all entries may be shorter.
    return bisect_right(range(1, wanted), budget, key=nbytes)


def message_bytes(codec: Coding, count: int, numel: int, value_bytes: int) -> float:
    """Return the expected number of bytes of one rank's message with ``count`` of a tensor's
    ``numel`` entries."""
    return overhead_bytes(1) + HEADER_BYTES + codec.body_bytes(count, numel, value_bytes)


def write_message(
    rank: int,
    step: int,
    configuration: int,
    frames: Mapping[int, np.ndarray],
    members: Iterable[int] | None = None,
) -> np.ndarray:
    """Return a message with entries, uint8. ``frames`` maps the position of a tensor to its frame.
    ``members`` has the positions of all members; None if all of them have a frame."""
    everyone = sorted(frames if members is None else members)
    # Each number in the message has a tensor's position, and a flag if the tensor has no frame.
    flagged, body = [], []
    for position in everyone:
        frame = frames.get(position)
        if frame is None:
            flagged.append(position + WITHOUT_FRAME)
        else:
            flagged.append(position)
            body.append(frame)
    return _write(ENTRIES, rank, step, configuration, flagged, body)


def write_error(rank: int, step: int, configuration: int, text: str) -> np.ndarray:
    # Python decodes bytes of paths that are no UTF-8 to characters that UTF-8 cannot encode.
    words = text.encode(errors="backslashreplace")
    words = words[:ERROR_TEXT_LIMIT].decode(errors="ignore").encode()  # cut between characters
    body = _CRC.pack(crc32(words)) + words
    return _write(ERROR, rank, step, configuration, [], [np.frombuffer(body, np.uint8)])


def _write(
    kind: int, rank: int, step: int, configuration: int, members: list[int], body: list[np.ndarray]
) -> np.ndarray:
    # The header has its own checksum, so that lengths are reliable before frames are read.
    total = OVERHEAD_BYTES + 4 * len(members)
    for part in body:
        total += part.size
    head = _HEAD.pack(
        MAGIC, WIRE_VERSION, kind, rank, step & 0xFFFFFFFF, configuration, len(members), total
    )
    head += struct.pack(f"<{len(members)}I", *members)
    head += _CRC.pack(crc32(head))
    return np.concatenate([np.frombuffer(head, np.uint8), *body])


def split_messages(joined: np.ndarray, senders: Sequence[int]) -> list[Message]:
    """Return the messages in a collective's result, one from each rank in ``senders``, in this
    order. Raises CorruptPayload if a message is truncated, altered or from another rank."""
    messages = []
    offset = 0
    # If a message is from another rank than expected, a collective has mixed up messages.
    for number, rank in enumerate(senders):
        message, total = _read(joined[offset:])
        if message.rank != rank:
            raise CorruptPayload(
                f"message {number} of a collective is from rank {message.rank}, but must be from "
                f"rank {rank}"
            )
        messages.append(message)
        offset += total
    if offset != joined.size:
        raise CorruptPayload(
            f"{joined.size - offset} bytes follow the messages of {len(senders)} ranks"
        )
    return messages


def _read(buffer: np.ndarray) -> tuple[Message, int]:
    if buffer.size < OVERHEAD_BYTES:
        raise CorruptPayload(
            f"a message is truncated: only {buffer.size} bytes are left where it should start"
        )
    magic, version, kind, rank, step, configuration, members, total = _HEAD.unpack_from(buffer.data)
    if magic != MAGIC or version != WIRE_VERSION or kind not in (ENTRIES, ERROR):
        raise CorruptPayload(
            f"a message starts with {magic!r}, version {version}, kind {kind}, which this version "
            "of hvd_sparse does not write: install one version on all ranks"
        )
    # Check the length first: the number of members is unreliable before the checksum.
    head_bytes = OVERHEAD_BYTES + 4 * members
    if not head_bytes <= total <= buffer.size:
        raise CorruptPayload(
            f"a message with {members} members announces {total} bytes, but has {buffer.size}"
        )
    head = buffer[:head_bytes].tobytes()
    if head[5:8] != b"\0\0\0" or (kind == ERROR and members):
        raise CorruptPayload("a message's header has values that no rank writes")
    if _CRC.unpack_from(head, head_bytes - _CRC.size)[0] != crc32(head[: -_CRC.size]):
        raise CorruptPayload(
            "a message's checksum does not match its header: it was altered on its way"
        )
    flagged = np.frombuffer(head, "<u4", members, _HEAD.size)
    # Remove the flags of members without a frame.
    positions = (flagged % WITHOUT_FRAME).tolist()
    # Frames follow in the order of the positions, so this order must be the same on all ranks.
    if positions != sorted(set(positions)):
        raise CorruptPayload("the members of a message do not ascend")
    body = buffer[head_bytes:total]
    if kind == ERROR:
        return Message(rank, step, configuration, (), {}, _read_error(body)), total
    frames = _split_frames(body, flagged[flagged < WITHOUT_FRAME].tolist())
    return Message(rank, step, configuration, tuple(positions), frames, None), total


def _split_frames(body: np.ndarray, positions: list[int]) -> dict[int, np.ndarray]:
    frames, offset, data = {}, 0, body.data
    for position in positions:
        start, offset = offset, offset + HEADER_BYTES
        if offset <= body.size:
            offset += body_bytes_at(data, start)[0]
        if offset > body.size:
            raise CorruptPayload(f"a message is truncated in its frame of tensor number {position}")
        frames[position] = body[start:offset]
    if offset != body.size:
        raise CorruptPayload(
            f"{body.size - offset} bytes follow the {len(frames)} frames of a message"
        )
    return frames


def _read_error(body: np.ndarray) -> str:
    words = body[_CRC.size :].tobytes()
    if body.size < _CRC.size or _CRC.unpack_from(body[: _CRC.size].tobytes())[0] != crc32(words):
        raise CorruptPayload(
            "an error message's checksum does not match its text: it was altered on its way"
        )
    # ``write_error`` cuts texts to this length.
    if len(words) > ERROR_TEXT_LIMIT:
        raise CorruptPayload(
            f"an error message of {len(words)} bytes is longer than any that is written"
        )
    try:
        return words.decode()
    except UnicodeDecodeError as error:
        raise CorruptPayload(f"an error message is no UTF-8: {error}") from None
