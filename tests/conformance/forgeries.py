"""Payloads that no encoder writes, with checksums that are right: the documented layouts, written
by hand."""

from __future__ import annotations

import struct
import zlib

import numpy as np


def forged(
    body: bytes, *, codec=1, value_type=1, value_format=0, numel=10, count=1, version=1
) -> np.ndarray:
    """A frame around any body."""
    head = struct.pack(
        "<2sBBBB2xIIQ", b"HS", version, codec, value_type, value_format, numel, count, len(body)
    )
    return np.frombuffer(head + struct.pack("<I4x", zlib.crc32(head + body)) + body, np.uint8)


def made(codec: int, layout: str, *parts: object, **header: int) -> np.ndarray:
    return forged(struct.pack("<" + layout, *parts), codec=codec, **header)


ONE = struct.pack("<If", 3, 1.5)
TWO = struct.pack("<IIff", 3, 4, 1.5, 2.5)
NAN, INF = float("nan"), float("inf")
LARGEST = 2**32 - 1

FAULTLESS = {
    "index_value": (forged(TWO, count=2), [3, 4], [1.5, 2.5]),
    "block16": (made(2, "HHHff", 2, 3, 4, 1.5, 2.5, count=2), [3, 4], [1.5, 2.5]),
    # 2 of 10: modulus 3; of the gaps 3 and 0 both remainders are 0, the quotients 1 and 0
    "golomb": (made(3, "BBff", 0, 0b110, 1.5, 2.5, count=2), [3, 4], [1.5, 2.5]),
    "chunk12": (made(13, "HBBBff", 2, 3, 4, 0, 1.5, 2.5, count=2), [3, 4], [1.5, 2.5]),
    "run16": (made(4, "HHff", 3, 0, 1.5, 2.5, count=2), [3, 4], [1.5, 2.5]),
    "bitmap": (made(5, "Hff", 0b11000, 1.5, 2.5, count=2), [3, 4], [1.5, 2.5]),
    "dense": (made(6, "ffI", 1.5, 2.5, LARGEST, numel=3, count=2), [0, 1], [1.5, 2.5]),
    "sign_index": (made(7, "fII", 1.5, 6, 9, count=2), [3, 4], [1.5, -1.5]),
    "sign_mean": (made(8, "fBBB", 1.5, 0, 0b110, 0b10, count=2), [3, 4], [1.5, -1.5]),
    "one_sign": (made(14, "fBBB", 1.5, 2, 0, 0b110, count=2), [3, 4], [-1.5, -1.5]),
    "ternary": (made(9, "fBBB", 1.5, 2, 13, 18, count=2), [3, 4], [1.5, -1.5]),
    "one_bit": (made(10, "fHB", 1.5, 0b11000, 0b10, count=2), [3, 4], [1.5, -1.5]),
    "two_bit": (made(11, "fBBB", 1.5, 0b01 << 6, 0b10, 0, count=2), [3, 4], [1.5, -1.5]),
}
FORGERIES = {
    "index_value": {
        "index beyond the tensor": forged(struct.pack("<If", 10, 1.5)),
        "indices that descend": forged(struct.pack("<IIff", 4, 3, 1.5, 2.5), count=2),
        "an index twice": forged(struct.pack("<IIff", 3, 3, 1.5, 2.5), count=2),
        "fewer entries than the body": forged(TWO, count=1),
        "more entries than the body": forged(ONE, count=2),
        "more entries than the tensor": forged(TWO, count=2, numel=1),
        "values of another width": forged(ONE, value_type=2),
        "an unknown type of values": forged(ONE, value_type=3),
        "an unknown format of values": forged(ONE, value_format=6),
        "another codec": forged(ONE, codec=255),
        "an index in an empty tensor": forged(ONE, numel=0),
        "a value that is NaN": forged(struct.pack("<If", 3, NAN)),
        "a value that is Inf": forged(struct.pack("<If", 3, INF)),
    },
    "block16": {
        "a count too many": made(2, "HHHff", 3, 3, 4, 1.5, 2.5, count=2),
        "positions that descend": made(2, "HHHff", 2, 4, 3, 1.5, 2.5, count=2),
        "a position beyond the tensor": made(2, "HHHff", 2, 3, 10, 1.5, 2.5, count=2),
        "wide counts without need": made(2, "IHHff", 2, 3, 4, 1.5, 2.5, count=2),
        "a block too many": made(2, "HHHHff", 2, 0, 3, 4, 1.5, 2.5, count=2),
        "a block too few": made(2, "HHHff", 2, 3, 4, 1.5, 2.5, count=2, numel=65_537),
        "more blocks than bytes": made(2, "Hf", 3, 1.5, numel=LARGEST),
        "a value that is NaN": made(2, "HHf", 1, 3, NAN),
    },
    "golomb": {
        "padding in the thirds": made(3, "BBff", 0b100, 0b110, 1.5, 2.5, count=2),
        "padding in the other thirds": made(3, "BBBff", 0b01, 0b10, 0b110, 1.5, 2.5, count=2),
        "padding in the quotients": made(3, "BBff", 0, 0b1110, 1.5, 2.5, count=2),
        "a byte of zeros at the end": made(3, "BBBff", 0, 0b110, 0, 1.5, 2.5, count=2),
        "a gap too few": made(3, "BBff", 0, 0b10, 1.5, 2.5, count=2),
        "an index beyond the tensor": made(3, "BBff", 0, 0b10010, 1.5, 2.5, count=2),
        "no room for the values": made(3, "BB", 0, 0b110, count=2),
        "gaps of nothing": made(3, "B", 1, count=0),
        "more entries than bits": made(3, "Bf", 1, 1.5, numel=LARGEST, count=LARGEST),
    },
    "chunk12": {
        "a count too many": made(13, "HBBBff", 3, 3, 4, 0, 1.5, 2.5, count=2),
        "positions that descend": made(13, "HBBBff", 2, 4, 3, 0, 1.5, 2.5, count=2),
        "a position beyond the tensor": made(13, "HBBBff", 2, 3, 10, 0, 1.5, 2.5, count=2),
        "padding in the positions": made(13, "HBBf", 1, 3, 0x10, 1.5),
        "a chunk too many": made(13, "HHBBBff", 2, 0, 3, 4, 0, 1.5, 2.5, count=2),
        "more chunks than bytes": made(13, "Hf", 3, 1.5, numel=LARGEST),
        "a value that is NaN": made(13, "HBBf", 1, 3, 0, NAN),
    },
    "run16": {
        "a run that leaves the tensor": made(4, "HHff", 3, 9, 1.5, 2.5, count=2),
        "a filler too many": made(4, "HHff", 65_535, 3, 0.0, 1.5, count=2, numel=100_000),
        "a filler at the end": made(4, "HHff", 3, 65_535, 1.5, 0.0, count=1, numel=100_000),
        "half a word": made(4, "HfB", 3, 1.5, 0),
        "a marked zero elsewhere": made(4, "HI", 3, LARGEST),
        "a value that is NaN": made(4, "Hf", 3, NAN),
    },
    "bitmap": {
        "padding": made(5, "Hff", 0b11000 | 1 << 10, 1.5, 2.5, count=2),
        "a bit too many": made(5, "Hff", 0b111000, 1.5, 2.5, count=2),
        "a byte too few": made(5, "Bff", 0b11000, 1.5, 2.5, count=2),
        "a tensor too long for its bytes": made(5, "Hf", 0b1000, 1.5, numel=LARGEST),
        "a value that is NaN": made(5, "Hf", 0b1000, NAN),
    },
    "dense": {
        "fewer than announced": made(6, "fII", 1.5, LARGEST, LARGEST, numel=3, count=2),
        "a missing one though all are announced": made(
            6, "ffI", 1.5, 2.5, LARGEST, numel=3, count=3
        ),
        "another NaN": made(6, "fI", 1.5, 0x7FC00000, numel=2, count=1),
        "a tensor too long for its bytes": made(6, "f", 1.5, numel=LARGEST),
    },
    "sign_index": {
        "a magnitude of zero": made(7, "fII", 0.0, 6, 9, count=2),
        "a negative magnitude": made(7, "fII", -1.5, 6, 9, count=2),
        "a magnitude that is NaN": made(7, "fII", NAN, 6, 9, count=2),
        "a magnitude of nothing": made(7, "f", 1.5, count=0),
        "minus zero of nothing": made(7, "f", -0.0, count=0),
        "an index with both signs": made(7, "fII", 1.5, 6, 7, count=2),
        "an index beyond the tensor": made(7, "fI", 1.5, 20),
        "no magnitude": made(7, "H", 6, count=0),
    },
    "sign_mean": {
        "padding in the signs": made(8, "fBBB", 1.5, 0, 0b110, 0b110, count=2),
        "padding in the thirds": made(8, "fBBB", 1.5, 0b100, 0b110, 0b10, count=2),
        "no room for the signs": made(8, "f", 1.5, count=2),
        "a magnitude that is Inf": made(8, "fBBB", INF, 0, 0b110, 0b10, count=2),
    },
    "one_sign": {
        "signs of no kind": made(14, "fBBB", 1.5, 3, 0, 0b110, count=2),
        "alike and one by one": made(14, "fBBBB", 1.5, 0, 0, 0b110, 0b11, count=2),
        "padding in the signs": made(14, "fBBBB", 1.5, 0, 0, 0b110, 0b101, count=2),
        "minus of nothing": made(14, "fB", 0.0, 2, count=0),
        "no kind": made(14, "f", 1.5),
        "no room for the signs": made(14, "fB", 1.5, 0, count=9),
    },
    "ternary": {
        "a word without a sign": made(9, "fBBB", 1.5, 2, 12, 18, count=2),
        "a word with both signs": made(9, "fBBB", 1.5, 2, 15, 18, count=2),
        "a count too few": made(9, "fBBB", 1.5, 1, 13, 18, count=2),
        "words that descend": made(9, "fBBB", 1.5, 2, 18, 13, count=2),
        "a word beyond the tensor": made(9, "fBBB", 1.5, 2, 13, 41, count=2),
        "the wider layout without need": made(9, "fHHH", 1.5, 2, 13, 18, count=2),
        "a tensor too long for its bytes": made(9, "fBB", 1.5, 1, 13, numel=LARGEST),
    },
    "one_bit": {
        "a bit too many": made(10, "fHB", 1.5, 0b111000, 0b10, count=2),
        "padding in the signs": made(10, "fHB", 1.5, 0b11000, 0b110, count=2),
        "a bitmap though all are sent": made(10, "fHB", 1.5, 0b11, 0b10, count=2, numel=2),
        "a tensor too long for its bytes": made(10, "fB", 1.5, 1, numel=LARGEST, count=LARGEST),
    },
    "two_bit": {
        "a sign of neither kind": made(11, "fBBB", 1.5, 0b01 << 6, 0b11, 0, count=2),
        "padding": made(11, "fBBB", 1.5, 0b01 << 6, 0b10, 1 << 4, count=2),
        "a sign too many": made(11, "fBBB", 1.5, 0b01 << 6, 0b1010, 0, count=2),
        "a tensor too long for its bytes": made(11, "fB", 1.5, 1, numel=LARGEST),
    },
}
