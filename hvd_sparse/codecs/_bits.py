"""Packing for codecs: numbers of a few bits, signs as single bits, and bitmaps of indices."""

from __future__ import annotations

import numpy as np

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.wire.frame import need


def pack(numbers: np.ndarray, width: int, kernels: Packers = reference) -> np.ndarray:
    """Pack numbers of 1, 2, 4, 8 or 16 bits into uint8, the first in the lowest bits."""
    if width == 16:
        return numbers.astype("<u2").view(np.uint8)
    if width == 8:
        return numbers.astype(np.uint8)
    if width == 1:
        return np.packbits(numbers.astype(np.uint8, copy=False), bitorder="little")
    return kernels.pack_few(numbers.astype(np.uint8, copy=False), width)


def unpack(packed: np.ndarray, width: int, count: int, kernels: Packers = reference) -> np.ndarray:
    """Unpack numbers into uint8, or uint16 for 16 bits; CorruptPayload if padding is not zero."""
    if width == 16:
        return packed.view("<u2")
    if width == 8:
        return packed
    if width == 1:
        bits = np.unpackbits(packed, bitorder="little")
        numbers = None if bits[count:].any() else bits[:count]
    else:
        numbers = kernels.unpack_few(packed, width, count)
    if numbers is None:
        raise CorruptPayload("the padding bits of a payload's last byte are not zero")
    return numbers


def encode_bits(is_set: np.ndarray) -> np.ndarray:
    """Pack bits into uint8, the first in the lowest bit, padded with zeros."""
    return np.packbits(is_set, bitorder="little")


def decode_bits(packed: np.ndarray, count: int) -> np.ndarray:
    """Unpack bits into bool [count]; CorruptPayload unless they fill the bytes exactly."""
    need(packed.size == -(-count // 8), f"{count} bits cannot fill {packed.size} bytes")
    return unpack(packed, 1, count).view(np.bool_)


def presence_bytes(numel: int) -> int:
    return -(-numel // 8)


def encode_presence(indices: np.ndarray, numel: int) -> np.ndarray:
    """Return the bitmap of the indices, uint8 [ceil(numel / 8)], first entry in the lowest bit."""
    is_sent = np.zeros(numel, np.uint8)
    is_sent[indices] = 1
    return np.packbits(is_sent, bitorder="little")


def decode_presence(packed: np.ndarray, count: int, numel: int) -> np.ndarray:
    """Return the indices of the set bits, uint32; CorruptPayload unless they are ``count``."""
    indices = np.flatnonzero(unpack(packed, 1, numel).view(np.bool_))
    need(indices.size == count, f"the bitmap has {indices.size} entries, and the header {count}")
    return indices.astype(np.uint32)
