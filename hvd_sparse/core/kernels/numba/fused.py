"""The fused pass: adds the gradient to the residual, and takes the entries that reach the aim.

Entries that reach the threshold are written out by a masked compress-store, which numba has no word
for, behind one branch that is seldom taken. Processors with AVX-512 have it as an instruction; for
others LLVM spells it out. Either way the loop makes one pass and is bound by memory.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.core.kernels.numba.intrinsics import Call, instructions
from hvd_sparse.core.kernels.numba.patterns import pattern_of
from hvd_sparse.core.kernels.numba.segments import SEGMENT, whole_end
from hvd_sparse.core.kernels.numba.signatures import signatures
from hvd_sparse.core.kernels.numba.vectors import DOUBLE, counting

LARGE_BYTES = 1 << 22
"""Bytes of an array that the caches do not keep until its next use."""

CROWDED = 10
"""Entries of a vector for each place in the list; with fewer, branches cannot be guessed."""


def _make_add_and_take(past_caches: bool, is_crowded: bool) -> Callable[..., object]:
    """Make an intrinsic over whole vectors: out = residual + x, with the threshold's entries taken
    out.

    Parameters
    ----------
    past_caches : ``out`` is written without reading its lines first, which must begin at multiples
        of 64 bytes
    is_crowded : so many entries reach the threshold that no branch can be guessed: every vector is
        appended, most of it to be overwritten
    """

    def emit(call: Call) -> ir.Value:
        gradient, kept, to, at, found, sums = call.pointers(0, 1, 2, 6, 7, 9)
        builder, vectors, (start, stop, cut) = call.builder, call.vectors, call.arguments[3:6]
        store = vectors.store_past_caches if past_caches else vectors.store
        cuts, infinity = vectors.splat_pattern(cut), vectors.infinity()
        zero = vectors.constant(0.0)
        states = [call.arguments[8], zero]
        with counting(builder, start, stop, vectors.lanes, states) as (
            index,
            (taken, total),
            leaving,
        ):
            old = vectors.load(kept, index)
            entry = builder.fadd(old, vectors.load(gradient, index))
            magnitude = vectors.magnitude(entry)
            patterns = vectors.patterns(entry)
            stays = builder.icmp_signed("<", patterns, cuts)  # NaN does not
            finite = builder.icmp_signed("<", patterns, infinity)

            # Put where it is needed: in the loop for a crowded list, else behind the rare branch.
            def take() -> list[ir.Value]:
                reaches = builder.and_(builder.not_(stays), finite)
                left = builder.select(stays, entry, zero)
                return [vectors.append(entry, reaches, index, at, found, taken), left]

            states_now = take() if is_crowded else [taken, entry]
            with vectors.seldom(
                builder.not_(finite if is_crowded else stays), states_now
            ) as changed:
                count, left = states_now if is_crowded else take()
                changed += [count, builder.select(finite, left, old)]
                nonfinite = vectors.ones(builder.not_(finite))
                call.add_up(sums, 1, builder.uitofp(nonfinite, DOUBLE))
            store(changed[1], to, index)
            leaving += [changed[0], builder.fadd(total, magnitude)]
        call.add_up(sums, 0, vectors.sum(states[1]))
        if past_caches:
            builder.fence("seq_cst")  # such writes may be seen late by other threads
        return states[0]

    @intrinsic
    def add_and_take(typing, x, residual, out, start, stop, cut, indices, values, count, totals):  # type: ignore[no-untyped-def]
        words = (types.intp, types.intp, types.intp)
        return types.intp(
            x, residual, out, *words, indices, values, types.intp, totals
        ), instructions(emit)

    made: Callable[..., object] = add_and_take
    return made


# Both choices are made when the code is, so that no loop asks for them.
_add_and_take = _make_add_and_take(False, False)
_add_and_take_crowded = _make_add_and_take(False, True)
_add_and_take_past_caches = _make_add_and_take(True, False)
_add_and_take_past_caches_crowded = _make_add_and_take(True, True)


@njit
def _add_and_take_whole(past_caches, is_crowded, *arguments):  # type: ignore[no-untyped-def]
    """Call the intrinsic that suits."""
    if past_caches and is_crowded:
        return _add_and_take_past_caches_crowded(*arguments)
    if past_caches:
        return _add_and_take_past_caches(*arguments)
    if is_crowded:
        return _add_and_take_crowded(*arguments)
    return _add_and_take(*arguments)


@njit
def _goes_past_caches(residual, out, start):  # type: ignore[no-untyped-def]
    """Tell whether writes to ``out`` may go past the caches.

    It must be another array than ``residual``, too large for the caches, and its vectors must be
    whole lines.
    """
    # In place the lines have been read already, and are in the caches.
    place = out.ctypes.data
    is_line = (place + start * out.itemsize) % 64 == 0
    return is_line and place != residual.ctypes.data and out.size * out.itemsize >= LARGE_BYTES


@njit(signatures("xxOpppJOpS"), nogil=True, cache=True)
def add_and_take(gradient, residual, out, start, stop, cut, indices, values, capacity, totals):  # type: ignore[no-untyped-def]
    """Write out = residual + gradient in [start, stop), and take the entries that reach the cut.

    Returns how many entries are taken, or -1: more than the capacity, so none is.

    Parameters
    ----------
    cut : bit pattern of the threshold, above 0
    indices, values : room for ``capacity + SPARE`` entries
    totals : float64 [2], added to: sum of magnitudes; how many are not finite
    """
    limit, count, is_full = cut, 0, False
    _, nothing_reaches = pattern_of(gradient.dtype.type(np.inf))
    past_caches = _goes_past_caches(residual, out, start)
    is_crowded = capacity * CROWDED > stop - start
    whole = whole_end(gradient, start, stop)
    first = start
    while first < stop:
        # A segment at a time: sums in float32 stay short, and a full list is noticed before it is
        # written past its room.
        last = min(first + SEGMENT, whole) if first < whole else stop
        if last <= whole:
            count = _add_and_take_whole(
                past_caches,
                is_crowded,
                gradient,
                residual,
                out,
                first,
                last,
                limit,
                indices,
                values,
                count,
                totals,
            )
        for i in range(max(first, whole), last):
            old = residual[i]  # read before anything is written: ``out`` may be ``residual``
            entry = old + gradient[i]
            pattern, infinity = pattern_of(entry)
            totals[0] += abs(entry)
            out[i] = entry
            if pattern >= infinity:
                totals[1] += 1
                out[i] = old
            elif pattern >= limit:
                indices[count], values[count] = i, entry
                count += 1
                out[i] = 0
        if count > capacity:
            # Too many to be worth a list: the entries go back, and nothing reaches the limit from
            # here on, so that the rest of the pass only adds.
            for i in range(count):
                out[indices[i]] = values[i]
            limit, count, is_full = nothing_reaches, 0, True
        first = last
    return -1 if is_full else count
