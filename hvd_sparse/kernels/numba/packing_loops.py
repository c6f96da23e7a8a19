"""Compiled loops of ``packers``, which read their input once.

Most loops have no branch on the data, so LLVM vectorizes them. In codes of variable length the
position of an entry depends on all entries before it. Loops over these codes need one dependent
addition per entry, and work on words of 64 bits.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.vectors import Call, instructions


def _arrays(scalar: types.Type) -> tuple[types.Array, types.Array]:
    return types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")


_U1, _U1_OUT = _arrays(types.uint8)
_U2, _U2_OUT = _arrays(types.uint16)
_U4, _U4_OUT = _arrays(types.uint32)
_U8, _U8_OUT = _arrays(types.uint64)
_F4, _F4_OUT = _arrays(types.float32)
_F = [(scalar, *_arrays(scalar)) for scalar in (types.float32, types.float64)]

LANES = 16
"""Entries that are skipped at once."""

WORD_BITS = 64
FEW = 4
"""Numbers that are written at once."""

SPARE = WORD_BITS
"""Room after a list of numbers, because the positions of a word's ones are written in groups."""

_LARGEST_HALF = 0x477FE000  # 65504 as float32
_SMALLEST_HALF = 0x38800000  # 2^-14, below which float16 is subnormal
_REBIAS = 112 << 23  # exponent bias of float32 minus that of float16


@njit([types.void(_U4, _arrays(types.int64)[1], types.intp)], nogil=True, cache=True)
def count_blocks(indices, counts, bits):  # type: ignore[no-untyped-def]
    start = 0
    for block in range(counts.size):
        end, limit = start, (block + 1) << bits
        # Indices ascend: if the last one is in the block, all are.
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
    """Write the indices, and return whether they ascend; the counts add up to the positions."""
    start = 0
    for block in range(counts.size):
        end = start + int(counts[block])
        part, there, first = positions[start:end], indices[start:end], np.uint32(block << bits)
        for i in range(part.size):
            there[i] = first | np.uint32(part[i])
        start = end
    # Count instead of returning early, because a loop without exit is vectorized.
    before, after = indices[:-1], indices[1:]
    falls = np.uint32(0)
    for i in range(after.size):
        falls += np.uint32(after[i] <= before[i])
    return falls == 0


@njit([types.void(_F4, _U4, _U2_OUT)], nogil=True, cache=True)
def half_codes(values, bits, codes):  # type: ignore[no-untyped-def]
    small = np.uint32(0)
    for i in range(bits.size):
        given = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        magnitude = given if given < np.uint32(_LARGEST_HALF) else np.uint32(_LARGEST_HALF)
        small += np.uint32(magnitude < np.uint32(_SMALLEST_HALF))
        tie = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
        code = np.uint32(np.uint32(magnitude + tie) - np.uint32(_REBIAS - 0xFFF))
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        codes[i] = np.uint16(np.uint32(code >> np.uint32(13)) | sign)
    if small:  # subnormal in float16: a multiple of 2^-24
        for i in range(bits.size):
            if bits[i] & np.uint32(0x7FFFFFFF) < np.uint32(_SMALLEST_HALF):
                multiple = np.rint(abs(values[i]) * np.float32(2.0**24))
                codes[i] = np.uint16(multiple) | np.uint16(
                    (bits[i] >> np.uint32(16)) & np.uint32(0x8000)
                )


@njit([types.intp(_U2, _U4_OUT, _F4_OUT)], nogil=True, cache=True)
def half_values(codes, bits, values):  # type: ignore[no-untyped-def]
    """Write the values, whose memory is ``bits``, and return whether all are finite."""
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
    for i in range(bits.size):
        code = np.uint32(np.uint32(bits[i] + np.uint32(0x8000)) >> np.uint32(16))
        exponent = np.uint32(code & np.uint32(0x7F80))
        cut = np.uint32(code - np.uint32(exponent == np.uint32(0x7F80)))
        codes[i] = np.uint16(cut if exponent != 0 else code & np.uint32(0x8000))


@njit([types.intp(_U2, _U4_OUT)], nogil=True, cache=True)
def brain_values(codes, bits):  # type: ignore[no-untyped-def]
    """Write bit patterns; return whether all are finite and none subnormal."""
    bad = False
    for i in range(codes.size):
        code = np.uint32(codes[i])
        exponent, rest = np.uint32(code & np.uint32(0x7F80)), np.uint32(code & np.uint32(0x7F))
        bad |= (exponent == np.uint32(0x7F80)) | ((exponent == 0) & (rest != 0))
        bits[i] = np.uint32(code << np.uint32(16))
    return not bad


@njit([types.uint32(_U4, types.uint32), types.uint64(_U8, types.uint64)], nogil=True, cache=True)
def largest_bits(bits, magnitude):  # type: ignore[no-untyped-def]
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
    for i in range(values.size):
        quotient = np.rint(values[i] / step)
        out[i] = np.int8(np.int32(max(-most, min(most, quotient))))


@njit(
    [types.UniTuple(types.int64, 2)(x, scalar, scalar, types.int32) for scalar, x, _ in _F],
    nogil=True,
    cache=True,
)
def sum_on_grid(values, scale, most, above):  # type: ignore[no-untyped-def]
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
    shift = bits.itemsize * 8 - 1
    for i in range(values.size):
        found = max(np.int32(min(abs(values[i]) * scale, most)), np.int32(1))
        codes[i] = np.uint8(bits[i] >> shift) | np.uint8(np.uint8(found > above) << np.uint8(1))


@njit([types.void(_U1, s, s, out) for s, _, out in _F], nogil=True, cache=True)
def level_values(codes, low, high, values):  # type: ignore[no-untyped-def]
    for i in range(codes.size):
        value = high if codes[i] & np.uint8(2) else low
        values[i] = -value if codes[i] & np.uint8(1) else value


@njit([types.void(_U2, _U1_OUT)], nogil=True, cache=True)
def pack_nibbles(pairs, packed):  # type: ignore[no-untyped-def]
    for i in range(pairs.size):
        pair = np.uint32(pairs[i])
        packed[i] = np.uint8((pair & np.uint32(15)) | (pair >> np.uint32(4)) & np.uint32(0xF0))


@njit([types.void(_U4, _U1_OUT)], nogil=True, cache=True)
def pack_quarters(fours, packed):  # type: ignore[no-untyped-def]
    for i in range(fours.size):
        four = np.uint32(fours[i] & np.uint32(0x03030303))
        four = np.uint32(four | np.uint32(four >> np.uint32(6)))
        packed[i] = np.uint8(np.uint32(four | np.uint32(four >> np.uint32(12))) & np.uint32(0xFF))


@njit([types.void(_U1, _U2_OUT)], nogil=True, cache=True)
def unpack_nibbles(packed, pairs):  # type: ignore[no-untyped-def]
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = np.uint16((byte & np.uint32(15)) | (byte << np.uint32(4)) & np.uint32(0xF00))


@njit([types.void(_U1, _U4_OUT)], nogil=True, cache=True)
def unpack_quarters(packed, fours):  # type: ignore[no-untyped-def]
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs = np.uint32((byte | np.uint32(byte << np.uint32(12))) & np.uint32(0xF000F))
        fours[i] = np.uint32(pairs | np.uint32(pairs << np.uint32(6))) & np.uint32(0x03030303)


def _emit_lowest(call: Call) -> ir.Value:
    return call.builder.cttz(call.arguments[0], ir.Constant(ir.IntType(1), 0))


def _emit_ones(call: Call) -> ir.Value:
    return call.builder.ctpop(call.arguments[0])


@intrinsic
def lowest_one(typing, word):  # type: ignore[no-untyped-def]
    """Return the position of the lowest one in a word; 64 if there is none."""
    return types.uint64(types.uint64), instructions(_emit_lowest)


@intrinsic
def _ones(typing, word):  # type: ignore[no-untyped-def]
    return types.uint64(types.uint64), instructions(_emit_ones)


@njit([types.void(_U4, types.uint32, types.uint32, _U4_OUT, _U4_OUT)], nogil=True, cache=True)
def split_gaps(indices, shift, parts, rests, quotients):  # type: ignore[no-untyped-def]
    before, rests_of, quotients_of = indices[:-1], rests[1:], quotients[1:]
    after = indices[1:]
    if parts == np.uint32(3):
        for i in range(after.size):
            gap = np.uint32(np.uint32(after[i] - before[i]) - np.uint32(1))
            quotient = np.uint32(np.uint32(gap >> shift) // np.uint32(3))
            quotients_of[i] = quotient
            rests_of[i] = np.uint32(gap - np.uint32(np.uint32(quotient * np.uint32(3)) << shift))
    else:
        for i in range(after.size):
            gap = np.uint32(np.uint32(after[i] - before[i]) - np.uint32(1))
            quotient = np.uint32(gap >> shift)
            quotients_of[i] = quotient
            rests_of[i] = np.uint32(gap - np.uint32(quotient << shift))
    if indices.size:
        quotients[0] = np.uint32(np.uint32(indices[0] >> shift) // parts)
        rests[0] = np.uint32(indices[0] - np.uint32(np.uint32(quotients[0] * parts) << shift))


@njit([types.void(_U4, types.uint32, _U1_OUT)], nogil=True, cache=True)
def bytes_from(numbers, shift, out):  # type: ignore[no-untyped-def]
    for i in range(numbers.size):
        out[i] = np.uint8(np.uint32(numbers[i] >> shift) & np.uint32(0xFF))


@njit([types.void(_U4_OUT, _U1, types.uint32)], nogil=True, cache=True)
def put_bytes(numbers, bits, shift):  # type: ignore[no-untyped-def]
    for i in range(numbers.size):
        numbers[i] |= np.uint32(np.uint32(bits[i]) << shift)


@njit([types.int64(_U4_OUT, _U4, types.int64)], nogil=True, cache=True)
def join_gaps(rests, quotients, modulus):  # type: ignore[no-untyped-def]
    """Replace the remainders by the indices, and return the last index, which is the largest."""
    # Do the vectorized work first; one dependent addition per entry remains.
    low, last = np.uint32(modulus), np.int64(rests.size) - 1
    for i in range(rests.size):
        last += np.int64(quotients[i]) * modulus + np.int64(rests[i])
        rests[i] = np.uint32(np.uint32(np.uint32(quotients[i] * low) + rests[i]) + np.uint32(1))
    index = np.uint32(0xFFFFFFFF)
    for i in range(rests.size):
        index = np.uint32(index + rests[i])
        rests[i] = index
    return last


@njit([types.uint64(_U4)], nogil=True, cache=True)
def total(numbers):  # type: ignore[no-untyped-def]
    found = np.uint64(0)
    for i in range(numbers.size):
        found += np.uint64(numbers[i])
    return found


@njit([types.uint64(_U4, types.intp, types.intp, types.uint64, _U8_OUT)], nogil=True, cache=True)
def _put_each(numbers, first, last, place, words):  # type: ignore[no-untyped-def]
    """Set the ones of some numbers, and return the position after them."""
    for i in range(first, last):
        place += np.uint64(numbers[i])
        words[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))
        place += np.uint64(1)
    return place


@njit([types.void(_U4, _U8_OUT)], nogil=True, cache=True)
def pack_unary(numbers, words):  # type: ignore[no-untyped-def]
    """Write numbers as that many zeros and a one; ``words`` are zeros, one more than needed."""
    one, low = np.uint64(1), np.uint64(63)
    place, whole = np.uint64(0), numbers.size // FEW * FEW
    for i in range(0, whole, FEW):
        a = np.uint64(numbers[i])
        b = a + np.uint64(numbers[i + 1]) + one
        c = b + np.uint64(numbers[i + 2]) + one
        d = c + np.uint64(numbers[i + 3]) + one
        if d > low:
            place = _put_each(numbers, i, i + FEW, place, words)
            continue
        # Write four ones together, into their word and the next.
        bits = (one << a) | (one << b) | (one << c) | (one << d)
        at, fill = place >> np.uint64(6), place & low
        words[at] |= bits << fill
        words[at + one] = (bits >> one) >> (low - fill)
        place += d + one
    _put_each(numbers, whole, numbers.size, place, words)


@njit([types.intp(_U8, _U4_OUT, types.intp)], nogil=True, cache=True)
def unpack_unary(words, places, count):  # type: ignore[no-untyped-def]
    """Write the positions of the ones, into room for ``count + SPARE``, and return their number; -1
    as soon as they exceed ``count``."""
    found = 0
    for at in range(words.size):
        word, start = words[at], np.uint64(WORD_BITS * at)
        ones = int(_ones(word))
        if found + ones > count:
            return -1
        # Always write four, because the loop then has fewer unpredictable branches.
        for first in range(found, found + ones, 4):
            for place in range(4):
                places[np.uintp(first + place)] = np.uint32(start + lowest_one(word))
                word &= word - np.uint64(1)
        found += ones
    return found


@njit([types.void(_U4_OUT)], nogil=True, cache=True)
def zeros_between(places):  # type: ignore[no-untyped-def]
    """Replace every position by the number of zeros between it and the one before."""
    before = np.uint32(0xFFFFFFFF)
    for i in range(places.size):
        place = places[i]
        places[i] = np.uint32(np.uint32(place - before) - np.uint32(1))
        before = place


@njit([types.intp(_U1, _U1_OUT, _U1_OUT)], nogil=True, cache=True)
def split_thirds(numbers, is_more, is_two):  # type: ignore[no-untyped-def]
    """Do ``Packers.split_thirds``; return how many numbers are above 0."""
    found = 0
    for i in range(numbers.size):
        more = np.uint8(numbers[i] != 0)
        is_more[i] = more
        is_two[np.uintp(found)] = np.uint8(numbers[i] >> np.uint8(1))
        found += int(more)
    return found


@njit([types.void(_U1, _U1, _U1_OUT)], nogil=True, cache=True)
def join_thirds(is_more, is_two, numbers):  # type: ignore[no-untyped-def]
    """Do ``Packers.join_thirds``; ``is_two`` is as long as ``numbers``."""
    found = 0
    for i in range(numbers.size):
        more = np.uint8(is_more[i])
        numbers[i] = np.uint8(more + np.uint8(more & is_two[np.uintp(found)]))
        found += int(more)
