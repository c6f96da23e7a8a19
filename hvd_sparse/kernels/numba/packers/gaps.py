"""Kernels of gaps between indices, compiled.  Contracts: ``kernels.packing``.

A code of variable length is one chain: where an entry's bits begin, the entries before it decide.
So the loops over it keep that chain at one addition an entry, and work on words of 64 bits.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.intrinsics import Call, instructions

_U1, _U4, _U8 = (
    types.Array(scalar, 1, "C", readonly=True)
    for scalar in (types.uint8, types.uint32, types.uint64)
)
_U1_OUT, _U4_OUT, _U8_OUT = (
    types.Array(scalar, 1, "C") for scalar in (types.uint8, types.uint32, types.uint64)
)

WORD_BITS = 64
FEW = 4
"""Numbers that are written at once."""

SPARE = WORD_BITS
"""Room behind a list of numbers: a word's places are written some at a time."""


def _emit_lowest(call: Call) -> ir.Value:
    return call.builder.cttz(call.arguments[0], ir.Constant(ir.IntType(1), 0))


def _emit_ones(call: Call) -> ir.Value:
    return call.builder.ctpop(call.arguments[0])


@intrinsic
def _lowest_one(typing, word):  # type: ignore[no-untyped-def]
    """Return the place of the lowest one in a word; 64 if it has none."""
    return types.uint64(types.uint64), instructions(_emit_lowest)


@intrinsic
def _ones(typing, word):  # type: ignore[no-untyped-def]
    """Return how many bits of a word are one."""
    return types.uint64(types.uint64), instructions(_emit_ones)


@njit([types.void(_U4, types.uint32, types.uint32, _U4_OUT, _U4_OUT)], nogil=True, cache=True)
def split_gaps(indices, shift, parts, rests, quotients):  # type: ignore[no-untyped-def]
    """Write the gaps modulo ``parts`` << ``shift``, and how often that is in them."""
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
    """Write the 8 bits of every number from a place on."""
    for i in range(numbers.size):
        out[i] = np.uint8(np.uint32(numbers[i] >> shift) & np.uint32(0xFF))


@njit([types.void(_U4_OUT, _U1, types.uint32)], nogil=True, cache=True)
def put_bytes(numbers, bits, shift):  # type: ignore[no-untyped-def]
    """Set bits of every number from a place on."""
    for i in range(numbers.size):
        numbers[i] |= np.uint32(np.uint32(bits[i]) << shift)


@njit([types.int64(_U4_OUT, _U4, types.int64)], nogil=True, cache=True)
def join_gaps(rests, quotients, modulus):  # type: ignore[no-untyped-def]
    """Write the indices in place of the rests; return the last, which is the largest."""
    # Steps on vectors first: the chain behind them is one addition an entry.
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
    """Return the sum of the numbers."""
    found = np.uint64(0)
    for i in range(numbers.size):
        found += np.uint64(numbers[i])
    return found


@njit([types.uint64(_U4, types.intp, types.intp, types.uint64, _U8_OUT)], nogil=True, cache=True)
def _put_each(numbers, first, last, place, words):  # type: ignore[no-untyped-def]
    """Set the ones of some numbers; return the place behind them."""
    for i in range(first, last):
        place += np.uint64(numbers[i])
        words[place >> np.uint64(6)] |= np.uint64(1) << (place & np.uint64(63))
        place += np.uint64(1)
    return place


@njit([types.void(_U4, _U8_OUT)], nogil=True, cache=True)
def pack_unary(numbers, words):  # type: ignore[no-untyped-def]
    """Write for every number as many zeros, and a one.

    Parameters
    ----------
    words : zeros, with room for all and a word more
    """
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
        # The four ones together, into the word and the one behind it.
        bits = (one << a) | (one << b) | (one << c) | (one << d)
        at, fill = place >> np.uint64(6), place & low
        words[at] |= bits << fill
        words[at + one] = (bits >> one) >> (low - fill)
        place += d + one
    _put_each(numbers, whole, numbers.size, place, words)


@njit([types.intp(_U8, _U4_OUT, types.intp)], nogil=True, cache=True)
def unpack_unary(words, places, count):  # type: ignore[no-untyped-def]
    """Write the places of the ones; return how many, or -1 as soon as they are more than
    ``count``.

    Parameters
    ----------
    places : of ``count``, and ``SPARE`` behind them
    """
    found = 0
    for at in range(words.size):
        word, start = words[at], np.uint64(WORD_BITS * at)
        ones = int(_ones(word))
        if found + ones > count:
            return -1
        # Four at a time, whether the word has as many or not: fewer branches that nobody foresees.
        for first in range(found, found + ones, 4):
            for place in range(4):
                places[np.uintp(first + place)] = np.uint32(start + _lowest_one(word))
                word &= word - np.uint64(1)
        found += ones
    return found


@njit([types.void(_U4_OUT)], nogil=True, cache=True)
def zeros_between(places):  # type: ignore[no-untyped-def]
    """Write in place of every place how many lie between it and the one before."""
    before = np.uint32(0xFFFFFFFF)
    for i in range(places.size):
        place = places[i]
        places[i] = np.uint32(np.uint32(place - before) - np.uint32(1))
        before = place


@njit([types.intp(_U1, _U1_OUT, _U1_OUT)], nogil=True, cache=True)
def split_thirds(numbers, is_more, is_two):  # type: ignore[no-untyped-def]
    """Write whether numbers are above 0, and of these, whether they are 2; return how many are.

    Parameters
    ----------
    is_two : as long as the numbers
    """
    found = 0
    for i in range(numbers.size):
        more = np.uint8(numbers[i] != 0)
        is_more[i] = more
        is_two[np.uintp(found)] = np.uint8(numbers[i] >> np.uint8(1))
        found += int(more)
    return found


@njit([types.void(_U1, _U1, _U1_OUT)], nogil=True, cache=True)
def join_thirds(is_more, is_two, numbers):  # type: ignore[no-untyped-def]
    """Write 1, and 2 where it is so, for those above 0.

    Parameters
    ----------
    is_two : as long as the numbers, though only those above 0 are read
    """
    found = 0
    for i in range(numbers.size):
        more = np.uint8(is_more[i])
        numbers[i] = np.uint8(more + np.uint8(more & is_two[np.uintp(found)]))
        found += int(more)
