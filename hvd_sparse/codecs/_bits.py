"""Packing of numbers of a few bits into bytes, and unpacking."""

from __future__ import annotations

import numpy as np

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import packing
from hvd_sparse.kernels.packing import Packers


def pack(numbers: np.ndarray, width: int, kernels: Packers = packing) -> np.ndarray:
    """Pack numbers of 1, 2, 4, 8 or 16 bits into uint8, the first in the lowest bits."""
    if width == 16:
        return numbers.astype("<u2").view(np.uint8)
    if width == 8:
        return numbers.astype(np.uint8)
    if width == 1:
        return np.packbits(numbers.astype(np.uint8, copy=False), bitorder="little")
    return kernels.pack_few(numbers.astype(np.uint8, copy=False), width)


def unpack(packed: np.ndarray, width: int, count: int, kernels: Packers = packing) -> np.ndarray:
    """Unpack ``count`` numbers of ``width`` bits into uint8, or uint16 for 16 bits.

    Raises
    ------
    CorruptPayload : the padding bits of the last byte are not zero
    """
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
