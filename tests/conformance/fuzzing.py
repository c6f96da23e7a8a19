"""Checks that a reader either refuses bytes as corrupt or accepts them, and that accepted bytes are
what an encoder would write."""

from __future__ import annotations

import functools
import struct
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any

import cases
import numpy as np
from conformance.codec_checks import ENTRY_BY_ENTRY, selection_of

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.registry import CODECS, ENGINES
from hvd_sparse.wire.frame import VALUE_FORMATS
from hvd_sparse.wire.message import split_messages, write_error, write_message

FRAME_HEAD = MESSAGE_HEAD = 32
EMPTY_MESSAGE = 36
INDEX_VALUE = CODECS.create("index_value")
Check = Callable[[bytes], bool]
"""Function that returns whether bytes were accepted. It raises AssertionError if they should have
been refused; any other error means that reading crashed."""


@functools.cache
def all_kernels() -> list[Any]:
    """Return the kernels of every engine. They are created when they are first needed, because a
    fuzzer cannot measure the coverage of compiled code."""
    return [case.create(ENGINES).kernels for case in cases.ENGINES if not case.options]


def check_frame(codec: Any, data: bytes) -> bool:
    """Check that a codec refuses the bytes or would write the same ones, with all engines alike.
    Return whether it accepts them."""
    accepted = [_reads(codec, data, kernels) for kernels in all_kernels()]
    assert len(set(accepted)) == 1, (
        f"{codec!r} reads {data.hex()} with one engine and refuses it with another"
    )
    return accepted[0]


def _reads(codec: Any, data: bytes, kernels: Any) -> bool:
    try:
        selection = codec.decode(np.frombuffer(data, np.uint8), kernels)
    except CorruptPayload:
        return False
    indices = selection.indices.astype(np.int64)
    assert np.all(np.diff(indices) > 0) and np.all(indices < selection.numel), (
        "indices that no tensor has"
    )
    assert np.isfinite(selection.values).all()
    assert codec.encode(selection, kernels).tobytes() == data, (
        f"{codec!r} reads {data.hex()} and would not write it"
    )
    return True


def check_messages(world_size: int, data: bytes) -> bool:
    try:
        messages = split_messages(np.frombuffer(data, np.uint8), range(world_size))
        selections = [
            [INDEX_VALUE.decode(frame) for frame in message.frames.values()] for message in messages
        ]
    except CorruptPayload:
        return False
    again = b""
    for message, decoded in zip(messages, selections):
        head = message.rank, message.step, message.configuration
        frames = dict(zip(message.frames, map(INDEX_VALUE.encode, decoded)))
        if message.error is None:
            written = write_message(*head, frames, message.members)
        else:
            written = write_error(*head, message.error)
        again += written.tobytes()
    assert again == data, f"{data.hex()} is read and would not be written"
    return True


def repaired_frame(data: bytes, codec: Any) -> bytes:
    head, body = data[:24].ljust(24, b"\0"), data[FRAME_HEAD:]
    number = head[3] if codec.number is None else codec.number
    head = (
        b"HS\1"
        + bytes([number, head[4], VALUE_FORMATS[getattr(codec, "values", "float32")]])
        + head[6:16]
    )
    head += struct.pack("<Q", len(body))
    return head + struct.pack("<I4x", zlib.crc32(body, zlib.crc32(head))) + body


def repaired_message(data: bytes) -> bytes:
    head = data[:24].ljust(24, b"\0")
    members = struct.unpack_from("<I", head, 20)[0] % 4
    positions = data[MESSAGE_HEAD : MESSAGE_HEAD + 4 * members].ljust(4 * members, b"\0")
    body = data[MESSAGE_HEAD + 4 * members + 4 :]
    if head[4] == 1:
        body = struct.pack("<I", zlib.crc32(body[4:])) + body[4:]
    elif members == 1:
        body = repaired_frame(body, INDEX_VALUE)
    head = (
        b"HSM\1"
        + head[4:20]
        + struct.pack("<IQ", members, MESSAGE_HEAD + 4 * members + 4 + len(body))
        + positions
    )
    return head + struct.pack("<I", zlib.crc32(head)) + body


def repaired_messages(data: bytes, world_size: int) -> bytes:
    cut = max(0, len(data) - EMPTY_MESSAGE * (world_size - 1))
    others = [data[at : at + EMPTY_MESSAGE] for at in range(cut, len(data), EMPTY_MESSAGE)]
    return b"".join(map(repaired_message, [data[:cut], *others]))


def seeds(name: str) -> list[bytes]:
    if name.startswith("messages"):
        frames = {4: INDEX_VALUE.encode(selection_of((1, 5), 9))}
        first = [write_message(0, 7, 99, frames, (2, 4)), write_error(0, 3, 5, "größe")]
        first.append(write_message(0, 0, 0, {}))
        second = [write_message(1, 7, 99, {})] if name.endswith("2") else []
        return [b"".join(each.tobytes() for each in (one, *second)) for one in first]
    return payloads(dict(zip(map(str, cases.CODECS), cases.CODECS))[name].create(CODECS))


def payloads(codec: Any) -> list[bytes]:
    chosen = [((), 0), ((0,), 1), ((1, 4, 6), 7), (range(20), 20), ((3, 64, 900), 1_000)]
    if codec.id not in ENTRY_BY_ENTRY:
        chosen.append(((5, 65_535, 65_536, 262_143), 262_144))
    return [
        codec.encode(selection_of(*where, dtype)).tobytes()
        for where in chosen
        for dtype in ("float32", "float64")
    ]


def targets() -> list[tuple[str, Check, Callable[[bytes], bytes]]]:
    made = [(str(case), case.create(CODECS)) for case in cases.CODECS]
    of_codecs = [
        (name, partial(check_frame, codec), partial(repaired_frame, codec=codec))
        for name, codec in made
    ]
    of_messages = [
        (f"messages of {n}", partial(check_messages, n), partial(repaired_messages, world_size=n))
        for n in (1, 2)
    ]
    return [*of_codecs, *of_messages]


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the data with one to four random changes: a bit, a byte or a number is changed, or a
    piece is removed, doubled or inserted."""
    changed = bytearray(data)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(len(changed) + 1))
        length = int(rng.integers(1, 9))
        kind = int(rng.integers(6))
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << int(rng.integers(8))
        elif kind == 1 and at < len(changed):
            changed[at] = int(rng.choice([0, 1, 2, 127, 128, 254, 255]))
        elif kind == 2:
            changed[at : at + 4] = struct.pack(
                "<I", int(rng.choice([0, 1, 2, 3, 64, 65_535, 65_536, 2**31, 2**32 - 1]))
            )
        elif kind == 3:
            del changed[at : at + length]
        elif kind == 4:
            changed[at:at] = changed[at : at + length]
        else:
            changed[at:at] = rng.bytes(length)
    return bytes(changed)


def check_damaged(check: Check, repair: Callable[[bytes], bytes], seeds: list[bytes]) -> int:
    """Check payloads with one to four random changes, and short ones with every bit changed, as
    they are and with right checksums. Return how many were accepted."""
    rng = np.random.default_rng(0)
    damaged = [mutated(seed, rng) for seed in seeds for _ in range(40)]
    for seed in seeds:
        for place in range(8 * len(seed) if len(seed) <= 56 else 0):
            changed = bytearray(seed)
            changed[place // 8] ^= 1 << place % 8
            damaged.append(bytes(changed))
    return sum(check(data) + check(repair(data)) for data in damaged)


def check_reader(codec: Any) -> None:
    repair = partial(repaired_frame, codec=codec)
    check_damaged(partial(check_frame, codec), repair, payloads(codec))
