"""Loops over whole vectors, compiled: looking, taking, counting, adding the gradient first or not.

They are written as instructions on vectors. Entries that reach the threshold are written out by a
masked compress-store, which numba has no word for, behind one branch that is seldom taken.
Processors with AVX-512 have it as an instruction; for others LLVM spells it out. Either way a loop
makes one pass and is bound by memory.

Everything is compiled when this module is loaded, or read from numba's cache: never inside a
training step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core.base import BaseContext
from numba.core.typing.templates import Signature
from numba.extending import intrinsic, overload

from hvd_sparse.core.kernels.numba.signatures import signatures
from hvd_sparse.core.kernels.numba.vectors import DOUBLE, WORD, Vectors, counting

SEGMENT = 2048
"""Entries between two looks at how full the list is.

Also how many magnitudes are added up in the data's dtype before the sum goes into a float64."""

SPARE = SEGMENT + 16
"""Room in a list beyond its capacity: a segment, and the rest of a vector written behind it."""

LARGE_BYTES = 1 << 22
"""Bytes of an array that the caches do not keep until its next use."""

CUTS = 7
"""Thresholds that one pass counts for: about as many as cost no time beside that of memory."""

CROWDED = 10
"""Entries of a vector for each place in the list; with fewer, branches cannot be guessed."""


def _data(
    context: BaseContext,
    builder: ir.IRBuilder,
    signature: Signature,
    arguments: Sequence[ir.Value],
    position: int,
) -> ir.Value:
    """Return the pointer to the entries of an array argument."""
    return context.make_array(signature.args[position])(context, builder, arguments[position]).data


def _add_up(builder: ir.IRBuilder, slots: ir.Value, position: int, amount: ir.Value) -> None:
    """Add an amount to one of the totals."""
    slot = builder.gep(slots, [ir.Constant(WORD, position)])
    builder.store(builder.fadd(builder.load(slot), amount), slot)


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

    def codegen(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        gradient, kept, to, at, found, sums = (
            _data(context, builder, signature, arguments, i) for i in (0, 1, 2, 6, 7, 9)
        )
        vectors = Vectors(builder, context.get_data_type(signature.args[0].dtype))
        store = vectors.store_past_caches if past_caches else vectors.store
        cuts, infinity, zero = (
            vectors.splat_pattern(arguments[5]),
            vectors.infinity(),
            vectors.constant(0.0),
        )
        states = [arguments[8], zero]
        with counting(builder, arguments[3], arguments[4], vectors.lanes, states) as (
            index,
            (taken, total),
            leaving,
        ):
            old = vectors.load(kept, index)
            entry = builder.fadd(old, vectors.load(gradient, index))
            magnitude = vectors.magnitude(entry)
            # Patterns, not floats, are compared: a thread that takes subnormal numbers for zero
            # must take the same entries.
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
                _add_up(
                    builder, sums, 1, builder.uitofp(vectors.ones(builder.not_(finite)), DOUBLE)
                )
            store(changed[1], to, index)
            leaving += [changed[0], builder.fadd(total, magnitude)]
        _add_up(builder, sums, 0, vectors.sum(states[1]))
        if past_caches:
            builder.fence("seq_cst")  # such writes may be seen late by other threads
        return states[0]

    @intrinsic
    def add_and_take(typing, x, residual, out, start, stop, cut, indices, values, count, totals):  # type: ignore[no-untyped-def]
        words = (types.intp, types.intp)
        return types.intp(
            x, residual, out, *words, types.intp, indices, values, types.intp, totals
        ), codegen

    made: Callable[..., object] = add_and_take
    return made


# Both choices are made when the code is, so that no loop asks for them.
_add_and_take, _add_and_take_crowded = (
    _make_add_and_take(False, False),
    _make_add_and_take(False, True),
)
_add_and_take_past_caches, _add_and_take_past_caches_crowded = (
    _make_add_and_take(True, False),
    _make_add_and_take(True, True),
)


@njit
def _add_and_take_whole(  # type: ignore[no-untyped-def]
    past_caches, is_crowded, x, residual, out, start, stop, cut, indices, values, count, totals
):
    """Call the intrinsic that suits."""
    if past_caches and is_crowded:
        return _add_and_take_past_caches_crowded(
            x, residual, out, start, stop, cut, indices, values, count, totals
        )
    if past_caches:
        return _add_and_take_past_caches(
            x, residual, out, start, stop, cut, indices, values, count, totals
        )
    if is_crowded:
        return _add_and_take_crowded(
            x, residual, out, start, stop, cut, indices, values, count, totals
        )
    return _add_and_take(x, residual, out, start, stop, cut, indices, values, count, totals)


def _reaching(vectors: Vectors, entry: ir.Value, cuts: ir.Value) -> ir.Value:
    """Return a mask of the entries that reach the cut; NaN never does."""
    builder, patterns = vectors.builder, vectors.patterns(entry)
    is_number = builder.icmp_signed("<=", patterns, vectors.infinity())
    return builder.and_(builder.icmp_signed(">=", patterns, cuts), is_number)


def _pattern(entry: float) -> tuple[int, int]:
    """Return the bit pattern of a magnitude, as the vectors compare it, and that of infinity."""
    raise NotImplementedError  # numba puts the overload in its place


@overload(_pattern)
def _pattern_by_type(entry):  # type: ignore[no-untyped-def]
    if entry == types.float32:
        return lambda entry: (
            np.intp(np.float32(entry).view(np.int32) & np.int32(0x7FFFFFFF)),
            np.intp(0x7F800000),
        )
    return lambda entry: (
        np.intp(np.float64(entry).view(np.int64) & np.int64(0x7FFFFFFFFFFFFFFF)),
        np.intp(0x7FF0000000000000),
    )


@intrinsic
def _take(typing, x, start, stop, cut, indices, values, count):  # type: ignore[no-untyped-def]
    """Append the entries in whole vectors of [start, stop) that reach the cut; return the new
    count."""

    def codegen(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        entries, at, found = (_data(context, builder, signature, arguments, i) for i in (0, 4, 5))
        vectors = Vectors(builder, context.get_data_type(signature.args[0].dtype))
        cuts = vectors.splat_pattern(arguments[3])
        states = [arguments[6]]
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (
            index,
            (taken,),
            leaving,
        ):
            entry = vectors.load(entries, index)
            # Few vectors have such an entry: one test of the whole mask skips the rest.
            reaches = _reaching(vectors, entry, cuts)
            with vectors.seldom(reaches, [taken]) as changed:
                changed.append(vectors.append(entry, reaches, index, at, found, taken))
            leaving += changed
        return states[0]

    return types.intp(x, types.intp, types.intp, types.intp, indices, values, types.intp), codegen


@intrinsic
def _count(typing, x, start, stop, cut):  # type: ignore[no-untyped-def]
    """Count the entries in whole vectors of [start, stop) that reach the cut."""

    def codegen(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        entries = _data(context, builder, signature, arguments, 0)
        vectors = Vectors(builder, context.get_data_type(signature.args[0].dtype))
        cuts = vectors.splat_pattern(arguments[3])
        states = [ir.Constant(WORD, 0)]
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (
            index,
            (count,),
            leaving,
        ):
            reaches = _reaching(vectors, vectors.load(entries, index), cuts)
            leaving.append(builder.add(count, vectors.ones(reaches)))
        return states[0]

    return types.intp(x, types.intp, types.intp, types.intp), codegen


@intrinsic
def _count_each(typing, x, start, stop, cuts, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts`` the entries in whole vectors of [start, stop) that reach each of ``CUTS``
    cuts."""

    def codegen(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        entries, limits, slots = (
            _data(context, builder, signature, arguments, i) for i in (0, 3, 4)
        )
        vectors = Vectors(builder, context.get_data_type(signature.args[0].dtype))
        places = [ir.Constant(WORD, i) for i in range(CUTS)]
        each = [
            vectors.splat_pattern(builder.load(builder.gep(limits, [place]))) for place in places
        ]
        states = [ir.Constant(WORD, 0)] * CUTS
        nothing = ir.Constant(vectors.integers, [0] * vectors.lanes)
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (
            index,
            found,
            leaving,
        ):
            patterns = vectors.patterns(vectors.load(entries, index))
            is_number = builder.icmp_signed("<=", patterns, vectors.infinity())
            # NaN becomes zero, which no cut reaches: one mask for all cuts.
            patterns = builder.select(is_number, patterns, nothing)
            for count, cut in zip(found, each):
                leaving.append(
                    builder.add(count, vectors.ones(builder.icmp_signed(">=", patterns, cut)))
                )
        for place, count in zip(places, states):
            slot = builder.gep(slots, [place])
            builder.store(builder.add(count, builder.load(slot)), slot)
        return context.get_dummy_value()

    return types.void(x, types.intp, types.intp, cuts, counts), codegen


def _make_look(adds: bool) -> Callable[..., object]:
    """Make an intrinsic over whole vectors: the moments of x, or of out = residual + x.

    Parameters
    ----------
    adds : add the residual first, and write the sum

    The intrinsic adds to ``totals``, float64 [3]: sum of magnitudes, their maximum (NaN
    overlooked), count of non-zeros.
    """

    def codegen(
        context: BaseContext,
        builder: ir.IRBuilder,
        signature: Signature,
        arguments: Sequence[ir.Value],
    ) -> ir.Value:
        x, kept, to, totals = (
            _data(context, builder, signature, arguments, i) for i in (0, 1, 2, 5)
        )
        scalar = signature.args[0].dtype
        vectors = Vectors(builder, ir.FloatType() if scalar == types.float32 else DOUBLE)
        zero, infinite = vectors.constant(0.0), vectors.constant(float("inf"))
        states = [*vectors.no_doubles(), zero, ir.Constant(WORD, 0)]
        with counting(builder, arguments[3], arguments[4], vectors.lanes, states) as (
            index,
            (low, high, top, n),
            leaving,
        ):
            entry = vectors.load(x, index)
            if adds:
                old = vectors.load(kept, index)
                entry = builder.fadd(old, entry)
            magnitude = vectors.magnitude(entry)
            if adds:
                finite = builder.fcmp_ordered("<", magnitude, infinite)
                vectors.store(builder.select(finite, entry, old), to, index)
            # Ordered comparisons are false for NaN: the maximum overlooks it, and the sum finds it.
            is_more = builder.fcmp_ordered(">", magnitude, top)
            # Summed as doubles: a float32 sum over a long vector loses its last digits.
            leaving += [
                builder.fadd(low, vectors.doubles(magnitude, 0)),
                builder.fadd(high, vectors.doubles(magnitude, 1)),
            ]
            leaving += [builder.select(is_more, magnitude, top)]
            leaving += [builder.add(n, vectors.ones(builder.fcmp_unordered("!=", entry, zero)))]
        low, high, top, n = states
        _add_up(builder, totals, 0, vectors.sum_of_doubles(builder.fadd(low, high)))
        slot = builder.gep(totals, [ir.Constant(WORD, 1)])
        largest = vectors.largest(top)
        is_more = builder.fcmp_ordered(">", largest, builder.load(slot))
        builder.store(builder.select(is_more, largest, builder.load(slot)), slot)
        _add_up(builder, totals, 2, builder.uitofp(n, DOUBLE))
        return context.get_dummy_value()

    @intrinsic
    def look(typing, x, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
        return types.void(x, residual, out, types.intp, types.intp, totals), codegen

    made: Callable[..., object] = look
    return made


_add_and_look, _look = _make_look(True), _make_look(False)


@njit
def _whole(x, start, stop):  # type: ignore[no-untyped-def]
    """Return the end of the last whole vector of [start, stop)."""
    lanes = 64 // x.itemsize
    return start + (stop - start) // lanes * lanes


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


@njit
def _look_at(entry, totals):  # type: ignore[no-untyped-def]
    """Add one entry to the moments."""
    magnitude = abs(entry)
    totals[0] += magnitude
    if magnitude > totals[1]:
        totals[1] = magnitude
    totals[2] += entry != 0


@njit(signatures("xxOppS", types.void), nogil=True, cache=True)
def add_and_look(gradient, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
    """Write out = residual + gradient in [start, stop), and add the sum's moments to ``totals``.

    Where the sum is not finite ``out`` keeps the residual's entry.
    """
    whole = _whole(gradient, start, stop)
    _add_and_look(gradient, residual, out, start, whole, totals)
    for i in range(whole, stop):
        entry = residual[i] + gradient[i]
        _look_at(entry, totals)
        out[i] = entry if abs(entry) < np.inf else residual[i]


@njit(signatures("xppS", types.void), nogil=True, cache=True)
def look(x, start, stop, totals):  # type: ignore[no-untyped-def]
    """Add the moments of x in [start, stop) to ``totals``."""
    whole = _whole(x, start, stop)
    _look(x, x, x, start, whole, totals)
    for i in range(whole, stop):
        _look_at(x[i], totals)


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
    _, nothing_reaches = _pattern(gradient.dtype.type(np.inf))
    past_caches = _goes_past_caches(residual, out, start)
    is_crowded = capacity * CROWDED > stop - start
    whole = _whole(gradient, start, stop)
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
            pattern, infinity = _pattern(entry)
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


@njit(signatures("xppp"), nogil=True, cache=True)
def count_at_least(x, start, stop, cut):  # type: ignore[no-untyped-def]
    """Count the magnitudes in [start, stop) that reach the cut, the bit pattern of a threshold."""
    whole = _whole(x, start, stop)
    count = _count(x, start, whole, cut)
    for i in range(whole, stop):
        pattern, infinity = _pattern(x[i])
        count += (pattern >= cut) & (pattern <= infinity)
    return count


@njit(signatures("xppII", types.void), nogil=True, cache=True)
def count_each(x, start, stop, cuts, counts):  # type: ignore[no-untyped-def]
    """Add to ``counts`` the magnitudes in [start, stop) that reach each of ``CUTS`` cuts, all above
    0."""
    whole = _whole(x, start, stop)
    _count_each(x, start, whole, cuts, counts)
    for i in range(whole, stop):
        pattern, infinity = _pattern(x[i])
        for j in range(CUTS):
            counts[j] += cuts[j] <= pattern <= infinity


@njit(signatures("xppJO"), nogil=True, cache=True)
def take_first(x, cut, count, indices, values):  # type: ignore[no-untyped-def]
    """Take the first ``count`` entries whose magnitudes have this bit pattern; return how many."""
    found = 0
    for i in range(x.size):
        if found == count:
            break
        pattern, _ = _pattern(x[i])
        if pattern == cut:
            indices[found], values[found] = i, x[i]
            found += 1
    return found


@njit(signatures("xpppJOp"), nogil=True, cache=True)
def take(x, start, stop, cut, indices, values, capacity):  # type: ignore[no-untyped-def]
    """Take the entries of [start, stop) that reach the cut; return their count.

    Beyond the capacity they are only counted.

    Parameters
    ----------
    indices, values : room for ``capacity + SPARE`` entries
    """
    whole = _whole(x, start, stop)
    count = 0
    for first in range(start, whole, SEGMENT):
        last = min(first + SEGMENT, whole)
        count = _take(x, first, last, cut, indices, values, count)
        if count > capacity:  # the list is full: the rest is only counted
            return count + count_at_least(x, last, stop, cut)
    for i in range(whole, stop):
        pattern, infinity = _pattern(x[i])
        if cut <= pattern <= infinity:
            indices[count], values[count] = i, x[i]
            count += 1
    return count
