"""Kernels of values of few bits, compiled.  Contracts: ``kernels.packing``.

Loops have no branch on the data, so that LLVM turns them into instructions on vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types


def _arrays(scalar: types.Type) -> tuple[types.Array, types.Array]:
    """Return the types of an array that is read, and of one that is written."""
    return types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")


_U1, _U1_OUT = _arrays(types.uint8)
_U2, _U2_OUT = _arrays(types.uint16)
_U4, _U4_OUT = _arrays(types.uint32)
_U8 = _arrays(types.uint64)[0]
_F = [(scalar, *_arrays(scalar)) for scalar in (types.float32, types.float64)]


@njit([types.uint32(_U4, types.uint32), types.uint64(_U8, types.uint64)], nogil=True, cache=True)
def largest_bits(bits, magnitude):  # type: ignore[no-untyped-def]
    """Return the largest magnitude's bit pattern; as whole numbers they ascend like magnitudes.

    Parameters
    ----------
    bits : bit patterns of floats
    magnitude : the bits below the sign
    """
    largest = magnitude ^ magnitude
    for i in range(bits.size):
        largest = max(largest, bits[i] & magnitude)
    return largest


@njit(
    [types.void(x, scalar, scalar, _arrays(types.int8)[1]) for scalar, x, _ in _F],
    nogil=True,
    cache=True,
)
def multiples(values, step, most, out):  # type: ignore[no-untyped-def]
    """Write the values in multiples of a step."""
    for i in range(values.size):
        quotient = np.rint(values[i] / step)
        out[i] = np.int8(np.int32(max(-most, min(most, quotient))))


@njit(
    [types.UniTuple(types.int64, 2)(x, scalar, scalar, types.int32) for scalar, x, _ in _F],
    nogil=True,
    cache=True,
)
def sum_on_grid(values, scale, most, above):  # type: ignore[no-untyped-def]
    """Return count and sum of the multiples beyond ``above``."""
    count, total = np.int64(0), np.int64(0)
    for i in range(values.size):
        found = max(np.int32(min(abs(values[i]) * scale, most)), np.int32(1))
        is_above = found > above
        count += is_above
        total += np.int64(found) * is_above
    return count, total


@njit(
    [
        types.void(x, bits, scalar, scalar, types.int32, _U1_OUT)
        for (scalar, x, _), bits in zip(_F, (_U4, _U8))
    ],
    nogil=True,
    cache=True,
)
def level_codes(values, bits, scale, most, above, codes):  # type: ignore[no-untyped-def]
    """Write the signs, and whether values are beyond ``above``.

    Parameters
    ----------
    bits : bit patterns of the values
    """
    shift = bits.itemsize * 8 - 1
    for i in range(values.size):
        found = max(np.int32(min(abs(values[i]) * scale, most)), np.int32(1))
        codes[i] = np.uint8(bits[i] >> shift) | np.uint8(np.uint8(found > above) << np.uint8(1))


@njit([types.void(_U1, s, s, out) for s, _, out in _F], nogil=True, cache=True)
def level_values(codes, low, high, values):  # type: ignore[no-untyped-def]
    """Write the values of signs and levels."""
    for i in range(codes.size):
        value = high if codes[i] & np.uint8(2) else low
        values[i] = -value if codes[i] & np.uint8(1) else value


@njit([types.void(_U2, _U1_OUT)], nogil=True, cache=True)
def pack_nibbles(pairs, packed):  # type: ignore[no-untyped-def]
    """Write the low 4 bits of two numbers into each byte.

    Parameters
    ----------
    pairs : two numbers each, the first in the lower byte
    """
    for i in range(pairs.size):
        pair = np.uint32(pairs[i])
        packed[i] = np.uint8((pair & np.uint32(15)) | (pair >> np.uint32(4)) & np.uint32(0xF0))


@njit([types.void(_U4, _U1_OUT)], nogil=True, cache=True)
def pack_quarters(fours, packed):  # type: ignore[no-untyped-def]
    """Write the low 2 bits of four numbers into each byte.

    Parameters
    ----------
    fours : four numbers each, the first in the lowest byte
    """
    for i in range(fours.size):
        four = np.uint32(fours[i] & np.uint32(0x03030303))
        four = np.uint32(four | np.uint32(four >> np.uint32(6)))
        packed[i] = np.uint8(np.uint32(four | np.uint32(four >> np.uint32(12))) & np.uint32(0xFF))


@njit([types.void(_U1, _U2_OUT)], nogil=True, cache=True)
def unpack_nibbles(packed, pairs):  # type: ignore[no-untyped-def]
    """Write the two numbers of each byte."""
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = np.uint16((byte & np.uint32(15)) | (byte << np.uint32(4)) & np.uint32(0xF00))


@njit([types.void(_U1, _U4_OUT)], nogil=True, cache=True)
def unpack_quarters(packed, fours):  # type: ignore[no-untyped-def]
    """Write the four numbers of each byte."""
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs = np.uint32((byte | np.uint32(byte << np.uint32(12))) & np.uint32(0xF000F))
        fours[i] = np.uint32(pairs | np.uint32(pairs << np.uint32(6))) & np.uint32(0x03030303)
