"""Gaps between indices, as a rest and a quotient each, and quotients and thirds as bits.

These are the references of ``packing.Packers``, in numpy.
"""

from __future__ import annotations

import numpy as np


def split_gaps(indices: np.ndarray, shift: int, has_thirds: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the gaps in rests and quotients, as ``Packers`` says."""
    # Into one array, without the copies of numpy.diff with a prefix.
    gaps: np.ndarray = np.empty(indices.size, np.uint32)
    gaps[:1] = indices[:1]
    np.subtract(indices[1:], indices[:-1], out=gaps[1:])
    gaps[1:] -= np.uint32(1)
    quotients = gaps >> np.uint32(shift)
    if has_thirds:
        quotients //= np.uint32(3)
    gaps -= quotients * np.uint32((3 if has_thirds else 1) << shift)
    return gaps, quotients


def join_gaps(
    rests: np.ndarray, quotients: np.ndarray, modulus: int, numel: int
) -> np.ndarray | None:
    """Return the indices of rests and quotients, as ``Packers`` says."""
    indices = np.cumsum(quotients, dtype=np.int64)
    indices *= modulus
    indices += np.cumsum(rests, dtype=np.int64)
    indices += np.arange(indices.size)
    # Gaps are not negative, so the last index is the largest: in 64 bits nothing wraps around.
    is_within = indices.size == 0 or int(indices[-1]) < numel
    return indices.astype(np.uint32) if is_within else None


def bytes_from(numbers: np.ndarray, shift: int) -> np.ndarray:
    """Return 8 bits of every number, as ``Packers`` says."""
    return (numbers >> np.uint32(shift)).astype(np.uint8)


def put_bytes(numbers: np.ndarray, bits: np.ndarray, shift: int) -> None:
    """Set bits of every number, as ``Packers`` says."""
    numbers |= bits.astype(np.uint32) << np.uint32(shift)


def pack_unary(numbers: np.ndarray) -> np.ndarray:
    """Return the numbers as zeros that a one ends, as ``Packers`` says."""
    # The place of a one is the sum of the numbers and the ones before it.
    ones = np.cumsum(numbers, dtype=np.int64)
    ones += np.arange(ones.size)
    unary = np.zeros(int(ones[-1]) + 1 if ones.size else 0, np.uint8)
    unary[ones] = 1
    return np.packbits(unary, bitorder="little")


def unpack_unary(packed: np.ndarray, count: int) -> np.ndarray | None:
    """Return the numbers again, as ``Packers`` says."""
    ones = np.flatnonzero(np.unpackbits(packed, bitorder="little").view(np.bool_))
    if ones.size != count:
        return None
    numbers = ones.astype(np.uint32)
    numbers[1:] = ones[1:] - ones[:-1] - 1
    return numbers


def split_thirds(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whether numbers are above 0, and of these, whether they are 2, as ``Packers`` says."""
    is_more = numbers != 0
    return is_more.view(np.uint8), (numbers[np.flatnonzero(is_more)] == 2).view(np.uint8)


def join_thirds(is_more: np.ndarray, is_two: np.ndarray) -> np.ndarray:
    """Return the numbers again, as ``Packers`` says."""
    numbers: np.ndarray = is_more.copy()
    numbers[np.flatnonzero(is_more)] += is_two
    return numbers
