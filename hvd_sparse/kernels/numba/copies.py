"""Copies of the entries that reach a cut, the bit pattern of a threshold."""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.counts import count_at_least
from hvd_sparse.kernels.numba.intrinsics import Call, instructions
from hvd_sparse.kernels.numba.patterns import pattern_of, reaching
from hvd_sparse.kernels.numba.segments import SEGMENT, whole_end
from hvd_sparse.kernels.numba.signatures import signatures
from hvd_sparse.kernels.numba.vectors import counting


def _emit_take(call: Call) -> ir.Value:
    entries, at, found = call.pointers(0, 4, 5)
    builder, vectors, (start, stop, cut) = call.builder, call.vectors, call.arguments[1:4]
    cuts = vectors.splat_pattern(cut)
    states = [call.arguments[6]]
    with counting(builder, start, stop, vectors.lanes, states) as (index, (taken,), leaving):
        entry = vectors.load(entries, index)
        # Few vectors have such an entry: one test of the whole mask skips the rest.
        reaches = reaching(vectors, entry, cuts)
        with vectors.seldom(reaches, [taken]) as changed:
            changed.append(vectors.append(entry, reaches, index, at, found, taken))
        leaving += changed
    return states[0]


@intrinsic
def _take(typing, x, start, stop, cut, indices, values, count):  # type: ignore[no-untyped-def]
    """Append the entries in whole vectors of [start, stop) that reach the cut; return the new
    count."""
    words = (types.intp, types.intp, types.intp)
    return types.intp(x, *words, indices, values, types.intp), instructions(_emit_take)


@njit(signatures("xpppJOp"), nogil=True, cache=True)
def take(x, start, stop, cut, indices, values, capacity):  # type: ignore[no-untyped-def]
    """Take the entries of [start, stop) that reach the cut; return their count.

    Beyond the capacity they are only counted.

    Parameters
    ----------
    indices, values : room for ``capacity + SPARE`` entries
    """
    whole = whole_end(x, start, stop)
    count = 0
    for first in range(start, whole, SEGMENT):
        last = min(first + SEGMENT, whole)
        count = _take(x, first, last, cut, indices, values, count)
        if count > capacity:  # the list is full: the rest is only counted
            return count + count_at_least(x, last, stop, cut)
    for i in range(whole, stop):
        pattern, infinity = pattern_of(x[i])
        if cut <= pattern <= infinity:
            indices[count], values[count] = i, x[i]
            count += 1
    return count


@njit(signatures("xppJO"), nogil=True, cache=True)
def take_first(x, cut, count, indices, values):  # type: ignore[no-untyped-def]
    """Take the first ``count`` entries whose magnitudes have this bit pattern; return how many."""
    found = 0
    for i in range(x.size):
        if found == count:
            break
        pattern, _ = pattern_of(x[i])
        if pattern == cut:
            indices[found], values[found] = i, x[i]
            found += 1
    return found
