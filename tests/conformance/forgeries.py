"""Payloads that no encoder writes, made from the documented layouts with correct checksums."""

import math
import struct
import zlib

import numpy as np


def forged(body, *, codec=1, value_type=1, value_format=0, numel=10, count=1, version=1):
    head = struct.pack(
        "<2sBBBB2xIIQ", b"HS", version, codec, value_type, value_format, numel, count, len(body)
    )
    return np.frombuffer(head + struct.pack("<I4x", zlib.crc32(head + body)) + body, np.uint8)


def made(codec, layout, *parts, **header):
    return forged(struct.pack("<" + layout, *parts), codec=codec, **header)


TWO = struct.pack("<IIff", 3, 4, 1.5, 2.5)
FORGERIES = {
    ("run16", "a filler at the end"): made(4, "HHff", 3, 65_535, 1.5, 0.0, count=1, numel=100_000),
    ("dense", "another NaN"): made(6, "fI", 1.5, 0x7FC00000, numel=2, count=1),
    ("sign_index", "a magnitude that is NaN"): made(7, "fII", math.nan, 6, 9, count=2),
    ("sign_mean", "a magnitude that is Inf"): made(8, "fBBB", math.inf, 0, 0b110, 0b10, count=2),
    ("one_sign", "minus of nothing"): made(14, "fB", 0.0, 2, count=0),
}
"""Invalid payloads that random changes hardly ever produce; ``fuzzing`` makes all others."""
