"""Compiled kernels on lists of entries: they find the largest entries, and add up lists.
Selecting loops have no branch, because they keep about half of the entries, in no predictable
pattern."""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types

from hvd_sparse.kernels.numba.vectors import (
    LARGE_BYTES,
    VECTOR_BYTES,
    WORD,
    Call,
    bits_of,
    compiled,
    counting,
    emitted,
    signatures,
)

MOST_BIN_BITS = 11
"""Binary logarithm of a histogram's largest number of bins, 2,048. This many counters fit the
first-level cache."""

BLOCK = 4096
"""Number of entries of ``assemble``'s buffer, which fits the first-level cache."""


@njit
def _key(bits, magnitude_bits, infinity):  # type: ignore[no-untyped-def]
    """Return the bit pattern of an entry's magnitude. ``bits`` is the bit pattern of the entry. For
    NaN return 0, so that NaN is never taken."""
    key = bits & magnitude_bits
    return key if key <= infinity else bits ^ bits  # zero of the same integer type


@njit
def _range(bits, everything, infinity):  # type: ignore[no-untyped-def]
    low, top, nonzeros = everything, everything ^ everything, 0
    for i in range(bits.size):
        key = _key(bits[i], everything, infinity)
        nonzeros += key != 0
        top = max(top, key)
        low = min(low, key if key != 0 else everything)
    return np.int64(low), np.int64(top), nonzeros


@njit
def _inside(bits, first, last, count, everything, infinity):  # type: ignore[no-untyped-def]
    inside, found = np.empty(count + 1, bits.dtype), 0
    for i in range(bits.size):
        key = _key(bits[i], everything, infinity)
        inside[found] = key  # written without a branch; kept only if ``found`` advances
        found += (key >= first) & (key <= last)
    return inside[:found]


@njit
def _cut(x, count):  # type: ignore[no-untyped-def]
    """Return the bit pattern of the count-th largest magnitude, and how many of the ``count``
    largest entries have exactly this magnitude. Return (0, 0) if there are fewer than ``count``
    non-zeros.

    A histogram of the patterns shows in which bin this magnitude lies. Then a histogram of only
    this bin is made, and so on, until a bin has one pattern.
    """
    bits, everything, infinity = bits_of(x)
    first, last, nonzeros = _range(bits, everything, infinity)
    missing = np.int64(count)
    if nonzeros < count:
        return np.int64(0), np.int64(0)
    if count < 1:
        return np.int64(everything), np.int64(0)  # nothing is taken
    bin_bits = 3
    while bin_bits < MOST_BIN_BITS and bits.size >> (bin_bits + 1):
        bin_bits += 1
    counts = np.zeros(1 << bin_bits, np.int64)
    while True:
        width = 0
        while ((last - first) >> width) >> bin_bits:
            width += 1
        counts[:] = 0
        for i in range(bits.size):
            key = np.int64(_key(bits[i], everything, infinity))
            if key >= first:
                counts[(key - first) >> width] += 1
        chosen = counts.size - 1
        while counts[chosen] < missing:
            missing -= counts[chosen]
            chosen -= 1
        first += chosen << width
        if width == 0:
            return first, missing
        # Take the minimum first, because first + (1 << width) - 1 may overflow.
        last = first + min(last - first, (1 << width) - 1)
        bits = _inside(bits, first, last, counts[chosen], everything, infinity)


@compiled(signatures("jxpJOOp", types.Tuple((types.intp, types.float64))))
def trim(indices, values, count, kept_indices, kept_values, out, gives_back):  # type: ignore[no-untyped-def]
    """Write the ``count`` entries of largest magnitude, without zeros and NaN, to ``kept_indices``
    and ``kept_values``, which have one spare place. Return the number of written entries and their
    smallest magnitude. If ``gives_back``, write all other entries back to the vector ``out``."""
    bits, everything, infinity = bits_of(values)
    smallest, ties = _cut(values, count)
    found, left = 0, 0
    surplus = np.empty(values.size + 1 if gives_back else 1, np.uint32)
    for i in range(bits.size):
        key = _key(bits[i], everything, infinity)
        is_tie = (key == smallest) & (ties > 0)
        ties -= is_tie
        is_kept = (key > smallest) | is_tie
        kept_indices[found], kept_values[found] = indices[i], values[i]
        found += is_kept
        if gives_back:  # list the other entries too, without a branch on the data
            surplus[left] = i
            left += not is_kept
    for i in range(left):
        out[indices[surplus[i]]] = values[surplus[i]]
    threshold = values.dtype.type(np.inf if found else 0)
    for i in range(found):
        threshold = min(threshold, abs(kept_values[i]))
    return found, threshold


def _emit_copy(call: Call) -> None:
    """Copy source[:count] to out[start : start + count] without reading the cache lines of ``out``.
    ``count`` is a multiple of the SIMD vector's length, and out[start] is aligned to 64 bytes."""
    source, to = call.pointers(0, 1)
    builder, vectors, (start, count) = call.builder, call.vectors, call.arguments[2:4]
    with counting(builder, ir.Constant(WORD, 0), count, vectors.lanes, []) as (index, _, _):
        vectors.store_past_caches(vectors.load(source, index), to, builder.add(start, index))


_copy_past_caches = emitted(_emit_copy)
_fence = emitted(lambda call: call.builder.fence("seq_cst"))


@njit
def _assemble_blocks(out, indices, values, ends):  # type: ignore[no-untyped-def]
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    is_large = out.size * out.itemsize >= LARGE_BYTES
    # Writes past the caches need whole lines; entries before the first are written normally.
    lanes = VECTOR_BYTES // out.itemsize
    lead = -out.ctypes.data % VECTOR_BYTES // out.itemsize if is_large else 0
    # Add up in a first-level cache buffer, so that each entry of ``out`` is written only once.
    block = np.zeros(BLOCK, out.dtype)
    first = 0
    # A large result starts with a short block up to its first whole line.
    while first < out.size:
        last = min(first + BLOCK if first >= lead else lead, out.size)
        for part in range(starts.size):
            i = starts[part]
            while i < ends[part] and indices[i] < last:
                block[indices[i] - first] += values[i]
                i += 1
        whole = (last - first) // lanes * lanes if is_large and first >= lead else 0
        if whole:
            _copy_past_caches(block, out, first, whole)
        for i in range(whole, last - first):
            out[first + i] = block[i]
        # Clear only the added entries, because they are few.
        for part in range(starts.size):
            i = starts[part]
            while i < ends[part] and indices[i] < last:
                block[indices[i] - first] = 0
                i += 1
            starts[part] = i
        first = last
    if is_large:
        _fence()


@compiled(signatures("OjOIf", types.void))
def assemble(out, indices, values, ends, factor):  # type: ignore[no-untyped-def]
    """Compute ``Kernels.assemble``. The parts are concatenated in ``indices`` and ``values``; part
    i ends at ``ends[i]``. ``values`` is overwritten by its product with ``factor``."""
    multiple = out.dtype.type(factor)
    for i in range(values.size):
        values[i] *= multiple
    if out.size > BLOCK:
        _assemble_blocks(out, indices, values, ends)
        return
    # ``out`` is no longer than the buffer would be, so add in ``out`` itself and save the copy.
    out[:] = 0
    for i in range(indices.size):
        out[indices[i]] += values[i]
