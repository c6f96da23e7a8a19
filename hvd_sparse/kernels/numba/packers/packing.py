"""Kernels of the codecs, compiled: each reads its input once.  Contracts: ``kernels.packing``.

Loops have no branch on the data, so that LLVM turns them into instructions on vectors.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

_U4, _U2 = (
    types.Array(types.uint32, 1, "C", readonly=True),
    types.Array(types.uint16, 1, "C", readonly=True),
)
_U4_OUT, _U2_OUT = types.Array(types.uint32, 1, "C"), types.Array(types.uint16, 1, "C")
_F4, _F4_OUT = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.float32, 1, "C")
_I8_OUT = types.Array(types.int64, 1, "C")

LANES = 16
"""Entries that are skipped over at a time."""

_LARGEST_HALF, _SMALLEST_HALF, _REBIAS = (
    0x477FE000,
    0x38800000,
    112 << 23,
)  # as in kernels.float16


@njit([types.void(_U4, _I8_OUT, types.intp)], nogil=True, cache=True)
def count_blocks(indices, counts, bits):  # type: ignore[no-untyped-def]
    """Count the indices of every block of 2^bits entries."""
    start = 0
    for block in range(counts.size):
        end, limit = start, (block + 1) << bits
        # Indices ascend: where the last of some lies in the block all of them do.
        while end + LANES <= indices.size and indices[np.uintp(end + LANES - 1)] < limit:
            end += LANES
        while end < indices.size and indices[np.uintp(end)] < limit:
            end += 1
        counts[block] = end - start
        start = end


@njit(
    [types.intp(counts, _U2, _U4_OUT, types.intp) for counts in (_U2, _U4)], nogil=True, cache=True
)
def join_blocks(counts, positions, indices, bits):  # type: ignore[no-untyped-def]
    """Write the indices of counts and positions; tell whether they ascend.

    The counts must have as many positions as their sum.
    """
    start = 0
    for block in range(counts.size):
        end = start + int(counts[block])
        part, there, first = positions[start:end], indices[start:end], np.uint32(block << bits)
        for i in range(part.size):
            there[i] = first | np.uint32(part[i])
        start = end
    # Counted rather than returned from at the first fall: a loop without exit runs on vectors.
    before, after = indices[:-1], indices[1:]
    falls = np.uint32(0)
    for i in range(after.size):
        falls += np.uint32(after[i] <= before[i])
    return falls == 0


@njit([types.void(_F4, _U4, _U2_OUT)], nogil=True, cache=True)
def half_codes(values, bits, codes):  # type: ignore[no-untyped-def]
    """Write float32 values as float16.

    Parameters
    ----------
    bits : bit patterns of the values
    """
    small = np.uint32(0)
    for i in range(bits.size):
        given = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        magnitude = given if given < np.uint32(_LARGEST_HALF) else np.uint32(_LARGEST_HALF)
        small += np.uint32(magnitude < np.uint32(_SMALLEST_HALF))
        tie = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
        code = np.uint32(np.uint32(magnitude + tie) - np.uint32(_REBIAS - 0xFFF))
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        codes[i] = np.uint16(np.uint32(code >> np.uint32(13)) | sign)
    if small:  # float16 has fewer bits there: multiples of 2^-24
        for i in range(bits.size):
            if bits[i] & np.uint32(0x7FFFFFFF) < np.uint32(_SMALLEST_HALF):
                multiple = np.rint(abs(values[i]) * np.float32(2.0**24))
                codes[i] = np.uint16(multiple) | np.uint16(
                    (bits[i] >> np.uint32(16)) & np.uint32(0x8000)
                )


@njit([types.intp(_U2, _U4_OUT, _F4_OUT)], nogil=True, cache=True)
def half_values(codes, bits, values):  # type: ignore[no-untyped-def]
    """Write the values of float16 codes; tell whether all of them are finite.

    Parameters
    ----------
    bits : bit patterns of the values, the same memory
    """
    bad = small = np.uint32(0)
    for i in range(codes.size):
        code = np.uint32(codes[i])
        exponent = np.uint32(code & np.uint32(0x7C00))
        bad += np.uint32(exponent == np.uint32(0x7C00))
        small += np.uint32(exponent == np.uint32(0))
        magnitude = np.uint32(
            np.uint32(np.uint32(code & np.uint32(0x7FFF)) << np.uint32(13)) + np.uint32(_REBIAS)
        )
        bits[i] = magnitude | np.uint32(np.uint32(code & np.uint32(0x8000)) << np.uint32(16))
    if small:
        for i in range(codes.size):
            if codes[i] & np.uint16(0x7C00) == 0:
                value = np.float32(codes[i] & np.uint16(0x3FF)) * np.float32(2.0**-24)
                values[i] = -value if codes[i] & np.uint16(0x8000) else value
    return bad == 0


@njit([types.void(_U4, _U2_OUT)], nogil=True, cache=True)
def brain_codes(bits, codes):  # type: ignore[no-untyped-def]
    """Write float32 bit patterns as bfloat16."""
    for i in range(bits.size):
        code = np.uint32(np.uint32(bits[i] + np.uint32(0x8000)) >> np.uint32(16))
        exponent = np.uint32(code & np.uint32(0x7F80))
        cut = np.uint32(code - np.uint32(exponent == np.uint32(0x7F80)))
        codes[i] = np.uint16(cut if exponent != 0 else code & np.uint32(0x8000))


@njit([types.intp(_U2, _U4_OUT)], nogil=True, cache=True)
def brain_values(codes, bits):  # type: ignore[no-untyped-def]
    """Write the bit patterns of bfloat16 codes; tell whether all are finite, and none subnormal."""
    bad = False
    for i in range(codes.size):
        code = np.uint32(codes[i])
        exponent, rest = np.uint32(code & np.uint32(0x7F80)), np.uint32(code & np.uint32(0x7F))
        bad |= (exponent == np.uint32(0x7F80)) | ((exponent == 0) & (rest != 0))
        bits[i] = np.uint32(code << np.uint32(16))
    return not bad
