"""Compiled bodies of codec ``sign_mean``, for ``rows``, which encodes a row in one call."""

from __future__ import annotations

import numpy as np
from numba import njit

from hvd_sparse.kernels.numba.packing_loops import lowest_one, split_gaps
from hvd_sparse.kernels.numba.vectors import pattern_of
from hvd_sparse.kernels.packing import modulus_of

WIDTHS = (16, 8, 4, 2, 1)
"""Widths of the planes of remainders, in bits, in order; a modulus uses some of them."""

_modulus_of = njit(modulus_of)


@njit
def mean_magnitude(values):  # type: ignore[no-untyped-def]
    """Return the mean of at least one magnitude, between their least and largest."""
    total, smallest, largest = 0.0, np.inf, 0.0
    for i in range(values.size):
        magnitude = np.float64(abs(values[i]))
        total += magnitude
        smallest, largest = min(smallest, magnitude), max(largest, magnitude)
    return values.dtype.type(min(max(total / values.size, smallest), largest))


@njit
def _bytes_of(count, width):  # type: ignore[no-untyped-def]
    return (count * width + 7) >> 3


@njit
def _put_bit(body, at, place):  # type: ignore[no-untyped-def]
    body[at + (place >> 3)] |= np.uint8(1 << (place & 7))


@njit
def _put_plane(body, at, rests, shift, width):  # type: ignore[no-untyped-def]
    """Write ``width`` bits of every remainder, from bit ``shift``."""
    mask = (1 << width) - 1
    for i in range(rests.size):
        part, place = (np.int64(rests[i]) >> shift) & mask, i * width
        body[at + (place >> 3)] |= np.uint8((part << (place & 7)) & 0xFF)
        if width == 16:
            body[at + (place >> 3) + 1] = np.uint8(part >> 8)


@njit
def write_signs(body, indices, values, magnitude, numel):  # type: ignore[no-untyped-def]
    """Write a body, and return its number of bytes.

    body : uint8 zeros, with room for 41 bits an entry and 24 bytes
    indices, values : at least one entry; no value is 0
    """
    scale = np.empty(1, values.dtype)
    scale[0] = magnitude
    at, count = scale.nbytes, indices.size
    body[:at] = scale.view(np.uint8)
    shift, parts = _modulus_of(count, numel)
    rests, quotients = np.empty(count, np.uint32), np.empty(count, np.uint32)
    split_gaps(indices, np.uint32(shift), np.uint32(parts), rests, quotients)
    done = 0
    for width in WIDTHS:
        if shift & width:
            _put_plane(body, at, rests, done, width)
            at, done = at + _bytes_of(count, width), done + width
    if parts == 3:
        twos, found = at + _bytes_of(count, 1), 0
        for i in range(count):
            third = rests[i] >> np.uint32(shift)
            if third != 0:
                _put_bit(body, at, i)
                if third == 2:
                    _put_bit(body, twos, found)
                found += 1
        at = twos + _bytes_of(found, 1)
    place = np.int64(0)
    for i in range(count):
        place += np.int64(quotients[i])
        _put_bit(body, at, place)
        place += 1
    at += _bytes_of(place, 1)
    for i in range(count):
        if values[i] < 0:
            _put_bit(body, at, i)
    return at + _bytes_of(count, 1)


@njit
def _is_padded(body, at, count, width):  # type: ignore[no-untyped-def]
    used = (count * width) & 7
    return used == 0 or body[at + _bytes_of(count, width) - 1] >> used == 0


@njit
def _bit(body, at, place):  # type: ignore[no-untyped-def]
    return (body[at + (place >> 3)] >> (place & 7)) & 1


@njit
def _read_planes(body, at, end, shift, rests):  # type: ignore[no-untyped-def]
    """Read the low bits of the remainders, and return the end of their planes; -1 if damaged."""
    done, count = 0, rests.size
    for width in WIDTHS:
        if not shift & width:
            continue
        stop, mask = at + _bytes_of(count, width), (1 << width) - 1
        if stop > end or not _is_padded(body, at, count, width):
            return -1
        for i in range(count):
            place = at + (i * width >> 3)
            part = np.int64(body[place])
            if width == 16:
                part |= np.int64(body[place + 1]) << 8
            rests[i] |= ((part >> (i * width & 7)) & mask) << done
        at, done = stop, done + width
    return at


@njit
def _read_thirds(body, at, end, shift, rests):  # type: ignore[no-untyped-def]
    """Add the thirds to the remainders, and return their end; -1 if they are not whole."""
    twos, found = at + _bytes_of(rests.size, 1), 0
    if twos > end or not _is_padded(body, at, rests.size, 1):
        return -1
    for i in range(rests.size):
        found += _bit(body, at, i)
    stop = twos + _bytes_of(found, 1)
    if stop > end or not _is_padded(body, twos, found, 1):
        return -1
    found = 0
    for i in range(rests.size):
        if _bit(body, at, i):
            rests[i] |= (1 + np.int64(_bit(body, twos, found))) << shift
            found += 1
    return stop


@njit
def _read_indices(unary, rests, modulus, numel, indices):  # type: ignore[no-untyped-def]
    """Write the indices; return whether they are as many as the ones, and all below numel."""
    count = rests.size
    if not 0 < unary.size <= (count + numel // modulus + 7) // 8 or unary[-1] == 0:
        return False
    entry, before, index = 0, np.int64(-1), np.int64(-1)
    for position in range(unary.size):
        ones = np.uint64(unary[position])
        while ones != 0:
            if entry == count:
                return False
            place = 8 * position + np.int64(lowest_one(ones))
            index += 1 + rests[entry] + (place - before - 1) * modulus
            indices[entry] = index
            before, entry = place, entry + 1
            ones &= ones - np.uint64(1)
    return entry == count and index < numel


@njit
def read_signs(body, numel, indices, values):  # type: ignore[no-untyped-def]
    """Read a body into ``indices`` and ``values``; return whether it is valid for their number."""
    count = indices.size
    at, end = values.itemsize, body.size - _bytes_of(count, 1)
    if count == 0 or end <= at or count > 8 * (end - at) or not _is_padded(body, end, count, 1):
        return False
    scale = body[:at].view(values.dtype)[0]
    pattern, infinity = pattern_of(scale)
    if body[at - 1] >> 7 or not 0 < pattern < infinity:
        return False
    shift, parts = _modulus_of(count, numel)
    rests = np.zeros(count, np.int64)
    at = _read_planes(body, at, end, shift, rests)
    if parts == 3 and at >= 0:
        at = _read_thirds(body, at, end, shift, rests)
    if at < 0 or not _read_indices(body[at:end], rests, parts << shift, numel, indices):
        return False
    for i in range(count):
        values[i] = -scale if _bit(body, end, i) else scale
    return True
