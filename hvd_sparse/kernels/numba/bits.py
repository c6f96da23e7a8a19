"""Compiled packing of small integers, and the Golomb code of gaps (``kernels.packing``). In the
unary part of this code, the gaps' codes have different lengths, so the place of a code depends on
all codes before it. The loops for this part work on words of 64 bits, and find each place by one
addition."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types

from hvd_sparse.kernels.numba.vectors import compiled, emitted
from hvd_sparse.kernels.packing import WIDTHS, modulus_of

WORD_BITS = 64
FEW = 4
"""Number of unary codes that ``_pack_unary`` writes at once."""

SPARE = WORD_BITS
"""Extra room in ``_unpack_unary``'s array of positions, which is written in groups of four."""

BYTES_OF_GAP = 6
"""Upper bound of the bytes of a gap's code: 31 bits of planes, 2 of thirds and about 3 of unary
code (see ``kernels.packing``)."""

_modulus_of = njit(modulus_of)

_INDICES = types.Array(types.uint32, 1, "C", readonly=True), types.Array(types.uint32, 1, "C")
_BODY = types.Array(types.uint8, 1, "C", readonly=True), types.Array(types.uint8, 1, "C")


@njit
def _pack_nibbles(pairs, packed):  # type: ignore[no-untyped-def]
    for i in range(pairs.size):
        pair = np.uint32(pairs[i])
        packed[i] = np.uint8((pair & np.uint32(15)) | (pair >> np.uint32(4)) & np.uint32(0xF0))


@njit
def _pack_quarters(fours, packed):  # type: ignore[no-untyped-def]
    for i in range(fours.size):
        four = np.uint32(fours[i] & np.uint32(0x03030303))
        four = np.uint32(four | np.uint32(four >> np.uint32(6)))
        packed[i] = np.uint8(np.uint32(four | np.uint32(four >> np.uint32(12))) & np.uint32(0xFF))


@njit
def _pack_eights(eights, packed):  # type: ignore[no-untyped-def]
    for i in range(eights.size):
        # The highest byte of the product collects the lowest bit of each of the eight bytes.
        bits = np.uint64(eights[i]) & np.uint64(0x0101010101010101)
        packed[i] = np.uint8((bits * np.uint64(0x0102040810204080)) >> np.uint64(56))


@compiled([types.void(_BODY[0], types.intp, _BODY[1])])
def pack_few(numbers, width, packed):  # type: ignore[no-untyped-def]
    per_byte = 8 // width
    whole = numbers.size // per_byte
    first, there = numbers[: whole * per_byte], packed[:whole]
    if width == 8:
        there[:] = first
    elif width == 4:
        _pack_nibbles(first.view(np.uint16), there)
    elif width == 2:
        _pack_quarters(first.view(np.uint32), there)
    else:
        _pack_eights(first.view(np.uint64), there)
    if whole < packed.size:
        last, mask = 0, (1 << width) - 1
        for place in range(numbers.size - whole * per_byte):
            last |= (np.intp(numbers[whole * per_byte + place]) & mask) << (place * width)
        packed[whole] = np.uint8(last)


@njit
def _unpack_nibbles(packed, pairs):  # type: ignore[no-untyped-def]
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs[i] = np.uint16((byte & np.uint32(15)) | (byte << np.uint32(4)) & np.uint32(0xF00))


@njit
def _unpack_quarters(packed, fours):  # type: ignore[no-untyped-def]
    for i in range(packed.size):
        byte = np.uint32(packed[i])
        pairs = np.uint32((byte | np.uint32(byte << np.uint32(12))) & np.uint32(0xF000F))
        fours[i] = np.uint32(pairs | np.uint32(pairs << np.uint32(6))) & np.uint32(0x03030303)


@njit
def _unpack_eights(packed, eights):  # type: ignore[no-untyped-def]
    for i in range(packed.size):
        # Byte k of the product is masked to bit k, which is then moved to the byte's lowest place.
        bits = np.uint64(packed[i]) * np.uint64(0x0101010101010101)
        bits = (bits & np.uint64(0x8040201008040201)) + np.uint64(0x7F7F7F7F7F7F7F7F)
        eights[i] = (bits >> np.uint64(7)) & np.uint64(0x0101010101010101)


@compiled([types.void(_BODY[0], types.intp, _BODY[1])])
def unpack_few(packed, width, numbers):  # type: ignore[no-untyped-def]
    if width == 8:
        numbers[:] = packed
    elif width == 4:
        _unpack_nibbles(packed, numbers.view(np.uint16))
    elif width == 2:
        _unpack_quarters(packed, numbers.view(np.uint32))
    else:
        _unpack_eights(packed, numbers.view(np.uint64))


_lowest_one = emitted(
    lambda call: call.builder.cttz(*call.arguments, ir.Constant(ir.IntType(1), 0)), types.uint64
)
"""The position of the lowest set bit of a uint64; 64 if no bit is set."""
_ones = emitted(lambda call: call.builder.ctpop(*call.arguments), types.uint64)


@njit
def _bytes_of(count, width):  # type: ignore[no-untyped-def]
    return (count * width + 7) >> 3


@njit
def _split_gaps(indices, shift, parts, rests, quotients):  # type: ignore[no-untyped-def]
    before, total = np.uint32(0xFFFFFFFF), np.int64(0)
    for i in range(indices.size):
        gap = np.uint32(np.uint32(indices[i] - before) - np.uint32(1))
        before = indices[i]
        quotient = np.uint32(gap >> shift)
        if parts == np.uint32(3):  # LLVM compiles a loop for each case, so this costs nothing
            quotient = np.uint32(quotient // np.uint32(3))
        rests[i] = np.uint32(gap - np.uint32(np.uint32(quotient * parts) << shift))
        quotients[i] = quotient
        total += np.int64(quotient)
    return total


@njit
def _join_gaps(rests, places, modulus):  # type: ignore[no-untyped-def]
    """Compute the indices from the parts of their gaps' codes. ``rests`` has the remainders of the
    gaps modulo ``modulus``, and is overwritten with the indices. ``places`` has the positions of
    the set bits in the unary part, from which the quotients follow. Return the last index, which is
    the largest."""
    index = before = np.int64(-1)
    for i in range(rests.size):
        place = np.int64(places[i])
        index += np.int64(rests[i]) + (place - before - 1) * modulus + 1
        before = place
        rests[i] = np.uint32(index)
    return index


@njit
def _bytes_from(numbers, shift, out):  # type: ignore[no-untyped-def]
    for i in range(numbers.size):
        out[i] = np.uint8(np.uint32(numbers[i] >> shift) & np.uint32(0xFF))


@njit
def _put_bytes(numbers, bits, shift):  # type: ignore[no-untyped-def]
    for i in range(numbers.size):
        numbers[i] |= np.uint32(np.uint32(bits[i]) << shift)


@njit
def _split_thirds(numbers, is_more, is_two):  # type: ignore[no-untyped-def]
    """Split numbers from 0 to 2 into two lists of bits. ``is_more`` gets for each number whether it
    is above 0, and ``is_two`` for each number above 0 whether it is 2. Return how many numbers are
    above 0."""
    found = 0
    for i in range(numbers.size):
        more = np.uint8(numbers[i] != 0)
        is_more[i] = more
        is_two[np.uintp(found)] = np.uint8(numbers[i] >> np.uint8(1))
        found += int(more)
    return found


@njit
def _join_thirds(is_more, is_two, numbers):  # type: ignore[no-untyped-def]
    """Compute ``numbers`` from the bits that ``_split_thirds`` wrote. ``is_two`` has room for one
    more entry, which is not used."""
    found = 0
    for i in range(numbers.size):
        more = np.uint8(is_more[i])
        numbers[i] = np.uint8(more + np.uint8(more & is_two[np.uintp(found)]))
        found += int(more)


@njit
def _put_each(numbers, first, last, place, words):  # type: ignore[no-untyped-def]
    for i in range(first, last):
        place += np.uint64(numbers[i])
        words[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))
        place += np.uint64(1)
    return place


@njit
def _pack_unary(numbers, words):  # type: ignore[no-untyped-def]
    """Write each number n to the bits of ``words``, as n zeros and a one. ``words`` has one word
    more than these bits need, and all its words are 0 at the start."""
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
        # Write four codes together, into the current word and the next.
        bits = (one << a) | (one << b) | (one << c) | (one << d)
        at, fill = place >> np.uint64(6), place & low
        words[at] |= bits << fill
        words[at + one] = (bits >> one) >> (low - fill)
        place += d + one
    _put_each(numbers, whole, numbers.size, place, words)


@njit
def _unpack_unary(words, places, count):  # type: ignore[no-untyped-def]
    """Write the positions of the set bits in ``words`` to ``places``. Return their number, or -1 if
    there are more than ``count``. ``places`` has room for ``count + SPARE`` positions."""
    found = 0
    for at in range(words.size):
        word, start = words[at], np.uint64(WORD_BITS * at)
        ones = int(_ones(word))
        if found + ones > count:
            return -1
        # Always write four positions, because the loop then has fewer unpredictable branches.
        for first in range(found, found + ones, 4):
            for place in range(4):
                places[np.uintp(first + place)] = np.uint32(start + _lowest_one(word))
                word &= word - np.uint64(1)
        found += ones
    return found


@compiled([types.intp(_INDICES[0], types.int64, _BODY[1])])
def pack_gaps(indices, numel, body):  # type: ignore[no-untyped-def]
    """Write the Golomb code of the gaps between the indices to ``body``. Return the code's length
    in bytes. ``body`` has room for ``BYTES_OF_GAP * (count + 8)`` bytes, where count is the number
    of indices."""
    count = indices.size
    shift, parts = _modulus_of(count, numel)
    rests, quotients = np.empty(count, np.uint32), np.empty(count, np.uint32)
    total = _split_gaps(indices, np.uint32(shift), np.uint32(parts), rests, quotients)
    low, at, done = np.empty(count, np.uint8), 0, 0
    for width in WIDTHS:
        stop = at + _bytes_of(count, shift & width)
        if shift & width == 16:
            for i in range(count):
                body[2 * i] = np.uint8(rests[i] & np.uint32(0xFF))
                body[2 * i + 1] = np.uint8(np.uint32(rests[i] >> np.uint32(8)) & np.uint32(0xFF))
        elif shift & width:
            _bytes_from(rests, np.uint32(done), low)
            pack_few(low, width, body[at:stop])
        at, done = stop, done + (shift & width)
    if parts == 3:
        is_more, is_two = np.empty(count, np.uint8), np.empty(count, np.uint8)
        _bytes_from(rests, np.uint32(shift), low)
        found = _split_thirds(low, is_more, is_two)
        twos = at + _bytes_of(count, 1)
        pack_few(is_more, 1, body[at:twos])
        at = twos + _bytes_of(found, 1)
        pack_few(is_two[:found], 1, body[twos:at])
    words = np.zeros((total + count) // WORD_BITS + 2, np.uint64)
    _pack_unary(quotients, words)
    stop = at + _bytes_of(total + count, 1)
    body[at:stop] = words.view(np.uint8)[: stop - at]
    return stop


@njit
def _unpack_plane(body, at, width, count, numbers):  # type: ignore[no-untyped-def]
    """Unpack ``count`` numbers of ``width`` <= 8 bits, from byte ``at`` of the body, to
    ``numbers``, which has room for 8 more. Return the position of the byte after these numbers in
    the body, or -1 if the body is too short or the padding is not zero."""
    stop = at + _bytes_of(count, width)
    if stop > body.size:
        return -1
    there = numbers[: (stop - at) * 8 // width]
    unpack_few(body[at:stop], width, there)
    for i in range(count, there.size):
        if there[i]:
            return -1
    return stop


@njit
def _unpack_rests(body, shift, parts, rests):  # type: ignore[no-untyped-def]
    """Read the remainders of the gaps from the body, and write them to ``rests``. ``shift`` and
    ``parts`` determine the modulus (``modulus_of``). Return the position of the byte after the
    remainders in the body, or -1 if the body is too short or padding is not zero."""
    count, at, done = rests.size, 0, 0
    low = np.empty(count + 8, np.uint8)
    rests[:] = 0
    for width in WIDTHS:
        if shift & width == 16:
            if 2 * count > body.size:
                return -1
            at = 2 * count
            for i in range(count):
                high = np.uint32(np.uint32(body[2 * i + 1]) << np.uint32(8))
                rests[i] = np.uint32(np.uint32(body[2 * i]) | high)
        elif shift & width:
            at = _unpack_plane(body, at, width, count, low)
            if at < 0:
                return -1
            _put_bytes(rests, low[:count], np.uint32(done))
        done += shift & width
    if parts == 3:
        is_more, is_two, found = np.empty(count + 8, np.uint8), np.empty(count + 8, np.uint8), 0
        at = _unpack_plane(body, at, 1, count, is_more)
        if at < 0:
            return -1
        for i in range(count):
            found += int(is_more[i])
        at = _unpack_plane(body, at, 1, found, is_two)
        _join_thirds(is_more, is_two, low[:count])
        _put_bytes(rests, low[:count], np.uint32(shift))
    return at


@compiled([types.boolean(_BODY[0], types.int64, _INDICES[1])])
def unpack_gaps(body, numel, indices):  # type: ignore[no-untyped-def]
    """Decode the Golomb code of gaps in ``body``, and write the indices to ``indices``. Return
    False if the body is no valid code of ``indices.size`` indices below ``numel``, and otherwise
    True."""
    count = indices.size
    shift, parts = _modulus_of(count, numel)
    modulus = parts << shift
    at = _unpack_rests(body, shift, parts, indices)
    size = body.size - at
    if at < 0 or not 0 < size <= (count + numel // modulus + 7) // 8 or body[-1] == 0:
        return False
    words, places = np.zeros((size + 7) // 8, np.uint64), np.empty(count + SPARE, np.uint32)
    words.view(np.uint8)[:size] = body[at:]
    if _unpack_unary(words, places, count) != count:
        return False
    return _join_gaps(indices, places, modulus) < numel
