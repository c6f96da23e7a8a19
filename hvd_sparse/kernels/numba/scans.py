"""Compiled passes over a vector: its moments, and the number or the list of the entries that reach
a cut. A cut is the bit pattern of a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.vectors import (
    DOUBLE,
    SEGMENT,
    WORD,
    Call,
    counting,
    instructions,
    pattern_of,
    reaching,
    signatures,
    whole_end,
)

CUTS = 7
"""Number of cuts that ``count_each`` counts in one pass. Fewer cuts would not be faster, because
the pass is limited by memory access."""

SHORT = 1 << 15
"""Largest vector, in entries, from which ``take_largest`` takes without a search."""

SAMPLE = 1 << 13
"""Number of entries in the sample by which ``search`` estimates the wanted magnitude."""

PATTERNS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
"""Integer type of each dtype's bit patterns, which ascend like the magnitudes."""


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
    return types.intp(x, types.intp, types.intp, types.intp), instructions(_emit_count)


@njit(signatures("xppp"), nogil=True, cache=True)
def count_at_least(x, start, stop, cut):  # type: ignore[no-untyped-def]
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
        # Replace the pattern of NaN by 0, which reaches no cut.
        patterns = builder.select(is_number, patterns, nothing)
        for count, cut in zip(found, cuts):
            reaches = builder.icmp_signed(">=", patterns, cut)
            leaving.append(builder.add(count, vectors.ones(reaches)))
    for place, count in zip(places, states):
        slot = builder.gep(slots, [place])
        builder.store(builder.add(count, builder.load(slot)), slot)


@intrinsic
def _count_each(typing, x, start, stop, cuts, counts):  # type: ignore[no-untyped-def]
    return types.void(x, types.intp, types.intp, cuts, counts), instructions(_emit_count_each)


@njit(signatures("xppII", types.void), nogil=True, cache=True)
def count_each(x, start, stop, cuts, counts):  # type: ignore[no-untyped-def]
    """For each j below ``CUTS``, add to counts[j] the number of entries in x[start:stop] that reach
    cuts[j]. All cuts are above 0."""
    whole = whole_end(x, start, stop)
    _count_each(x, start, whole, cuts, counts)
    for i in range(whole, stop):
        pattern, infinity = pattern_of(x[i])
        for j in range(CUTS):
            counts[j] += cuts[j] <= pattern <= infinity


def _emit_take(call: Call) -> ir.Value:
    entries, at, found = call.pointers(0, 4, 5)
    builder, vectors, (start, stop, cut) = call.builder, call.vectors, call.arguments[1:4]
    cuts = vectors.splat_pattern(cut)
    states = [call.arguments[6]]
    with counting(builder, start, stop, vectors.lanes, states) as (index, (taken,), leaving):
        entry = vectors.load(entries, index)
        # Append only if any lane reaches the cut, because in most SIMD vectors none does.
        reaches = reaching(vectors, entry, cuts)
        with vectors.seldom(reaches, [taken]) as changed:
            changed.append(vectors.append(entry, reaches, index, at, found, taken))
        leaving += changed
    return states[0]


@intrinsic
def _take(typing, x, start, stop, cut, indices, values, count):  # type: ignore[no-untyped-def]
    words = (types.intp, types.intp, types.intp)
    return types.intp(x, *words, indices, values, types.intp), instructions(_emit_take)


@njit(signatures("xpppJOp"), nogil=True, cache=True)
def take(x, start, stop, cut, indices, values, capacity):  # type: ignore[no-untyped-def]
    """Write the entries of x[start:stop] that reach the cut to the lists, and return their number.
    The lists have room for ``capacity + SPARE`` entries. If more than ``capacity`` entries reach
    the cut, the lists are incomplete, but the number is exact."""
    whole = whole_end(x, start, stop)
    count = 0
    for first in range(start, whole, SEGMENT):
        last = min(first + SEGMENT, whole)
        count = _take(x, first, last, cut, indices, values, count)
        if count > capacity:  # the list is full
            return count + count_at_least(x, last, stop, cut)
    for i in range(whole, stop):
        pattern, infinity = pattern_of(x[i])
        if cut <= pattern <= infinity:
            indices[count], values[count] = i, x[i]
            count += 1
    return count


@njit(signatures("xppJO"), nogil=True, cache=True)
def take_first(x, cut, count, indices, values):  # type: ignore[no-untyped-def]
    found = 0
    for i in range(x.size):
        if found == count:
            break
        pattern, _ = pattern_of(x[i])
        if pattern == cut:
            indices[found], values[found] = i, x[i]
            found += 1
    return found


def _make_look(adds: bool) -> Callable[..., object]:
    """Make a numba intrinsic that updates ``totals`` with x: the sum of the magnitudes, the largest
    magnitude (NaN is ignored) and the number of non-zeros.

    adds : first write ``out`` = residual + x, or the residual's entry where residual + x is not
        finite, and update ``totals`` with residual + x instead of x
    """

    def emit(call: Call) -> None:
        x, kept, to, totals = call.pointers(0, 1, 2, 5)
        builder, vectors, (start, stop) = call.builder, call.vectors, call.arguments[3:5]
        zero, infinite = vectors.constant(0.0), vectors.constant(float("inf"))
        nothing = ir.Constant(vectors.half, [0.0] * (vectors.lanes // 2))
        states = [nothing, nothing, zero, ir.Constant(WORD, 0)]
        loop = counting(builder, start, stop, vectors.lanes, states)
        with loop as (index, (low, high, top, n), leaving):
            entry = vectors.load(x, index)
            if adds:
                old = vectors.load(kept, index)
                entry = builder.fadd(old, entry)
            magnitude = vectors.magnitude(entry)
            if adds:
                finite = builder.fcmp_ordered("<", magnitude, infinite)
                vectors.store(builder.select(finite, entry, old), to, index)
            # Ordered comparisons are false for NaN, so the maximum ignores NaN; the sum becomes
            # NaN.
            is_more = builder.fcmp_ordered(">", magnitude, top)
            leaving += [
                # Add in float64, because a float32 sum over a long vector loses its last digits.
                builder.fadd(low, vectors.doubles(magnitude, 0)),
                builder.fadd(high, vectors.doubles(magnitude, 1)),
                builder.select(is_more, magnitude, top),
                builder.add(n, vectors.ones(builder.fcmp_unordered("!=", entry, zero))),
            ]
        low, high, top, n = states
        call.add_up(totals, 0, vectors.sum_of_doubles(builder.fadd(low, high)))
        slot = builder.gep(totals, [ir.Constant(WORD, 1)])
        largest = vectors.largest(top)
        is_more = builder.fcmp_ordered(">", largest, builder.load(slot))
        builder.store(builder.select(is_more, largest, builder.load(slot)), slot)
        call.add_up(totals, 2, builder.uitofp(n, DOUBLE))

    @intrinsic
    def look(typing, x, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
        words = (types.intp, types.intp)
        return types.void(x, residual, out, *words, totals), instructions(emit)

    made: Callable[..., object] = look
    return made


_add_and_look, _look = _make_look(True), _make_look(False)


@njit
def _look_at(entry, totals):  # type: ignore[no-untyped-def]
    magnitude = abs(entry)
    totals[0] += magnitude
    if magnitude > totals[1]:
        totals[1] = magnitude
    totals[2] += entry != 0


@njit(signatures("xxOppS", types.void), nogil=True, cache=True)
def add_and_look(gradient, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
    whole = whole_end(gradient, start, stop)
    _add_and_look(gradient, residual, out, start, whole, totals)
    for i in range(whole, stop):
        entry = residual[i] + gradient[i]
        _look_at(entry, totals)
        out[i] = entry if abs(entry) < np.inf else residual[i]


@njit(signatures("xppS", types.void), nogil=True, cache=True)
def look(x, start, stop, totals):  # type: ignore[no-untyped-def]
    whole = whole_end(x, start, stop)
    _look(x, x, x, start, whole, totals)
    for i in range(whole, stop):
        _look_at(x[i], totals)


class Found(NamedTuple):
    """Result of a search for the count-th largest magnitude of a vector.

    pattern, above : bit patterns; at least ``count`` entries reach ``pattern``, and fewer than
        ``count`` reach ``above``
    candidates : the number of entries that reach ``pattern``, if the search stopped early because
        they are few enough to list. None if ``pattern`` is exactly the count-th largest magnitude,
        and ``above`` the next pattern. If there are fewer than ``count`` non-zeros, ``candidates``
        is None and ``pattern`` equals ``above``
    """

    pattern: int
    above: int
    candidates: int | None


def search(x: np.ndarray, count: int, reached: Callable[[np.ndarray], np.ndarray]) -> Found:
    """Return the bit pattern of the count-th largest magnitude, or a range of patterns around it.

    The first pass counts entries near the pattern that a sample suggests, and mostly no other pass
    is needed. Each further pass divides the range by eight, so there are at most 12 passes for
    float32 and 22 for float64.

    reached : function that counts, for each of ``CUTS`` ascending patterns, the entries of x that
        reach it
    """
    low, above, few = 1, _infinity(x.dtype) + 1, 4 * count + SHORT
    cuts = _likely_cuts(x, count)
    while above > low + 1:
        counts = reached(cuts)
        enough = int(np.count_nonzero(counts >= count))  # number of cuts that are low enough
        if enough:
            low = int(cuts[enough - 1])
            if counts[enough - 1] <= few:
                return Found(low, above, int(counts[enough - 1]))
        above = int(cuts[enough]) if enough < cuts.size else above
        cuts = low + (above - low) * np.arange(1, CUTS + 1) // (CUTS + 1)
        cuts = np.maximum(cuts, low + 1)  # if the range is short, several cuts are equal
    return Found(low, above, None)


def _likely_cuts(x: np.ndarray, count: int) -> np.ndarray:
    """Return ascending cuts near the count-th largest magnitude, estimated from a sample. With each
    pattern, the next higher one is a cut too, so that one pass is enough if very many entries have
    the same magnitude."""
    # A strided sample is about as good as a random one here, and gives the same result every time.
    sample = np.abs(x[:: max(1, x.size // SAMPLE)])
    patterns = np.sort(
        np.where(np.isnan(sample), 0, sample).view(PATTERNS[x.dtype]).astype(np.intp)
    )[::-1]
    rank = sample.size * count / x.size
    # The standard deviation of a rank in a sample is about its square root.
    margin = 4 * np.sqrt(rank) + 2
    ranks = np.clip(np.array([rank + margin, rank, rank - margin], np.intp), 0, sample.size - 1)
    cuts = np.concatenate([[1], *([pattern, pattern + 1] for pattern in patterns[ranks])])
    return np.sort(np.clip(cuts, 1, _infinity(x.dtype)))


def _infinity(dtype: np.dtype) -> int:
    return int(np.array(np.inf, dtype).view(PATTERNS[dtype]))
