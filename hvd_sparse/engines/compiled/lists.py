"""Work on short lists and at scattered places, compiled: cutting, keeping, adding, clearing.

Loops are free of branches on the data where a list can be long: half of the candidates are kept, which no processor guesses.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from .signatures import signatures

BIN_BITS = 11
"""Of a histogram: 2,048 counters fit the first cache."""


@njit(nogil=True)
def _range(keys):  # type: ignore[no-untyped-def]
    """Smallest non-zero and largest key, and how many are not zero."""
    top = keys.dtype.type(0)
    for i in range(keys.size):
        top = max(top, keys[i])
    low, count = top, 0
    for i in range(keys.size):
        count += keys[i] != 0
        low = min(low, keys[i] if keys[i] != 0 else top)
    return np.int64(low), np.int64(top), count


@njit(
    [types.UniTuple(types.int64, 2)(types.Array(t, 1, "C"), types.intp) for t in (types.int32, types.int64)],
    nogil=True,
    cache=True,
)
def cut_keys(keys, count):  # type: ignore[no-untyped-def]
    """The count-th largest of the non-zero keys, and how many equal to it are among the count; (0, 0) if there are fewer.

    Bins between the smallest and the largest key are counted; what falls into the bin of the count-th is binned again.
    Keys are the bit patterns of magnitudes, as integers in their order, so bins are finer where values are smaller.
    """
    low, top, nonzeros = _range(keys)
    if nonzeros < count:
        return np.int64(0), np.int64(0)
    missing = np.int64(count)
    counts = np.zeros(1 << BIN_BITS, np.int64)
    while True:
        width = 0
        while ((top - low) >> width) >> BIN_BITS:
            width += 1
        counts[:] = 0
        for i in range(keys.size):
            if keys[i] >= low:
                counts[(np.int64(keys[i]) - low) >> width] += 1
        chosen = counts.size - 1
        while counts[chosen] < missing:
            missing -= counts[chosen]
            chosen -= 1
        low += chosen << width
        if width == 0:
            return low, missing
        top = min(top, low + (1 << width) - 1)
        inside = np.empty(counts[chosen], keys.dtype)
        found = 0
        for i in range(keys.size):
            if low <= keys[i] <= top:
                inside[found] = keys[i]
                found += 1
        keys = inside


@njit(signatures("jxvpJO"), nogil=True, cache=True)
def keep(indices, values, threshold, ties, kept_indices, kept_values):  # type: ignore[no-untyped-def]
    """Entries above the threshold and the first ``ties`` of those equal to it; how many.  Room for one more than all."""
    count, left = 0, ties
    for i in range(values.size):
        magnitude = abs(values[i])
        is_tie = (magnitude == threshold) & (left > 0)
        left -= is_tie
        kept_indices[count], kept_values[count] = indices[i], values[i]
        count += (magnitude > threshold) | is_tie
    return count


@njit(signatures("jxvpOJ"), nogil=True, cache=True)
def give_back(indices, values, threshold, ties, out, surplus):  # type: ignore[no-untyped-def]
    """out[i] = value of all entries that ``keep`` does not keep; how many.  ``surplus``: room for one more than all."""
    count, left = 0, ties
    for i in range(values.size):
        magnitude = abs(values[i])
        is_tie = (magnitude == threshold) & (left > 0)
        left -= is_tie
        surplus[count] = i
        count += (magnitude <= threshold) & (not is_tie)
    for i in range(count):
        out[indices[surplus[i]]] = values[surplus[i]]
    return count


@njit(signatures("Ojx", types.void), nogil=True, cache=True)
def restore(out, indices, values):  # type: ignore[no-untyped-def]
    for i in range(indices.size):
        out[indices[i]] = values[i]


@njit(signatures("Oj", types.void), nogil=True, cache=True)
def clear(residual, indices):  # type: ignore[no-untyped-def]
    for i in range(indices.size):
        residual[indices[i]] = 0


@njit(signatures("Ojx", types.void), nogil=True, cache=True)
def scatter_add(out, indices, values):  # type: ignore[no-untyped-def]
    for i in range(indices.size):
        out[indices[i]] += values[i]
