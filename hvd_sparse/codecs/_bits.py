"""Numbers of a few bits, packed into bytes and back."""

from __future__ import annotations

import numpy as np

from hvd_sparse.core.wire.frame import need


def pack(numbers: np.ndarray, width: int) -> np.ndarray:
    """Pack numbers of 1, 2, 4, 8 or 16 bits into uint8, the first in the lowest bits."""
    if width == 16:
        return numbers.astype("<u2").view(np.uint8)
    if width == 8:
        return numbers.astype(np.uint8)
    if width == 1:
        return np.packbits(numbers.astype(np.uint8, copy=False), bitorder="little")
    per_byte = 8 // width
    # Every per_byte-th number at a time: strides, where packbits knows one bit alone.
    padded = np.zeros(-(-numbers.size // per_byte) * per_byte, np.uint8)
    padded[: numbers.size] = numbers
    packed = padded[::per_byte].copy()
    for place in range(1, per_byte):
        packed |= padded[place::per_byte] << np.uint8(width * place)
    return packed


def unpack(packed: np.ndarray, width: int, count: int) -> np.ndarray:
    """Undo ``pack``: return uint8 or uint16 [count].

    Raises
    ------
    CorruptPayload : the bits that pad the last byte are not zero
    """
    if width == 16:
        return packed.view("<u2")
    if width == 8:
        return packed
    per_byte = 8 // width
    if width == 1:
        numbers = np.unpackbits(packed, bitorder="little")
    else:
        numbers = np.empty(packed.size * per_byte, np.uint8)
        for place in range(per_byte):
            np.right_shift(packed, width * place, out=numbers[place::per_byte])
        numbers &= np.uint8((1 << width) - 1)
    need(not numbers[count:].any(), "bits that pad a byte are not zero")
    return numbers[:count]
