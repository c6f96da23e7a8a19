"""Counts of the entries that reach a cut, or each of several, in one pass.

A cut is the bit pattern of a threshold.
"""

from __future__ import annotations

from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.intrinsics import Call, instructions
from hvd_sparse.kernels.numba.patterns import pattern_of, reaching
from hvd_sparse.kernels.numba.segments import whole_end
from hvd_sparse.kernels.numba.signatures import signatures
from hvd_sparse.kernels.numba.vectors import WORD, counting

CUTS = 7
"""Cuts that one pass counts for: about as many as cost no time beside that of memory."""


def _emit_count(call: Call) -> ir.Value:
    (entries,) = call.pointers(0)
    builder, vectors, (start, stop, cut) = call.builder, call.vectors, call.arguments[1:4]
    cuts = vectors.splat_pattern(cut)
    states = [ir.Constant(WORD, 0)]
    with counting(builder, start, stop, vectors.lanes, states) as (index, (count,), leaving):
        reaches = reaching(vectors, vectors.load(entries, index), cuts)
        leaving.append(builder.add(count, vectors.ones(reaches)))
    return states[0]


@intrinsic
def _count(typing, x, start, stop, cut):  # type: ignore[no-untyped-def]
    """Count the entries in whole vectors of [start, stop) that reach the cut."""
    return types.intp(x, types.intp, types.intp, types.intp), instructions(_emit_count)


@njit(signatures("xppp"), nogil=True, cache=True)
def count_at_least(x, start, stop, cut):  # type: ignore[no-untyped-def]
    """Count the magnitudes in [start, stop) that reach the cut."""
    whole = whole_end(x, start, stop)
    count = _count(x, start, whole, cut)
    for i in range(whole, stop):
        pattern, infinity = pattern_of(x[i])
        count += (pattern >= cut) & (pattern <= infinity)
    return count


def _emit_count_each(call: Call) -> None:
    entries, limits, slots = call.pointers(0, 3, 4)
    builder, vectors, (start, stop) = call.builder, call.vectors, call.arguments[1:3]
    places = [ir.Constant(WORD, i) for i in range(CUTS)]
    cuts = [vectors.splat_pattern(builder.load(builder.gep(limits, [place]))) for place in places]
    states = [ir.Constant(WORD, 0)] * CUTS
    nothing = ir.Constant(vectors.integers, [0] * vectors.lanes)
    with counting(builder, start, stop, vectors.lanes, states) as (index, found, leaving):
        patterns = vectors.patterns(vectors.load(entries, index))
        is_number = builder.icmp_signed("<=", patterns, vectors.infinity())
        # NaN becomes zero, which no cut reaches: one mask for all cuts.
        patterns = builder.select(is_number, patterns, nothing)
        for count, cut in zip(found, cuts):
            reaches = builder.icmp_signed(">=", patterns, cut)
            leaving.append(builder.add(count, vectors.ones(reaches)))
    for place, count in zip(places, states):
        slot = builder.gep(slots, [place])
        builder.store(builder.add(count, builder.load(slot)), slot)


@intrinsic
def _count_each(typing, x, start, stop, cuts, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts`` the entries in whole vectors of [start, stop) that reach each of ``CUTS``
    cuts."""
    return types.void(x, types.intp, types.intp, cuts, counts), instructions(_emit_count_each)


@njit(signatures("xppII", types.void), nogil=True, cache=True)
def count_each(x, start, stop, cuts, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts`` the magnitudes in [start, stop) that reach each of ``CUTS`` cuts, all above
    0."""
    whole = whole_end(x, start, stop)
    _count_each(x, start, whole, cuts, counts)
    for i in range(whole, stop):
        pattern, infinity = pattern_of(x[i])
        for j in range(CUTS):
            counts[j] += cuts[j] <= pattern <= infinity
