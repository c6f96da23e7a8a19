"""The loops over whole vectors, compiled: looking, taking, counting, with or without adding the
gradient first.

Written as instructions on vectors.  What survives the threshold is written out by a masked
compress-store, which numba has no word for, behind one branch that is seldom taken.  Processors
with AVX-512 have it as an instruction; for others LLVM spells it out.  Either way a loop makes one
pass and is bound by memory.

Everything is compiled when this module is loaded, or read from numba's cache: never inside a
training step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.core.kernels.numba.signatures import signatures
from hvd_sparse.core.kernels.numba.vectors import DOUBLE, WORD, Vectors, counting

SEGMENT = 2048
"""Entries between two looks at how full the list is.  Also how many magnitudes are added up before
the sum goes into a float64."""

SPARE = SEGMENT + 16
"""Room in a list beyond its capacity: entries of a segment, and the rest of a vector that is
written behind them."""

LARGE_BYTES = 1 << 22
"""Of an array that the caches do not keep until its next use."""

CROWDED = 10
"""A list with room for more than one entry in so many is expected to fill faster than branches can
be guessed."""


def _data(context: Any, builder: Any, signature: Any, arguments: Any, position: int) -> Any:
    return context.make_array(signature.args[position])(context, builder, arguments[position]).data


def _add_up(builder: Any, slots: Any, position: int, amount: Any) -> None:
    slot = builder.gep(slots, [ir.Constant(WORD, position)])
    builder.store(builder.fadd(builder.load(slot), amount), slot)


def _make_add_and_take(past_caches: bool, is_crowded: bool) -> Any:
    """An intrinsic over whole vectors of [start, stop): out = residual + x, what reaches the
    threshold taken out.

    past_caches : ``out`` is written without reading its lines first, which must begin at multiples
        of 64 bytes
    is_crowded : so many reach it that no branch can be guessed: every vector is appended, most of
        it to be overwritten
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        gradient, kept, to, at, found, sums = (
            _data(context, builder, signature, arguments, i) for i in (0, 1, 2, 6, 7, 9)
        )
        vectors = Vectors(builder, arguments[5].type)
        store = vectors.store_past_caches if past_caches else vectors.store
        thresholds, zero, infinite = (
            vectors.splat(arguments[5]),
            vectors.constant(0.0),
            vectors.constant(float("inf")),
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
            stays = builder.fcmp_ordered("<", magnitude, thresholds)  # NaN does not
            finite = builder.fcmp_ordered("<", magnitude, infinite)

            def take() -> list[Any]:
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
    def add_and_take(
        typing, x, residual, out, start, stop, threshold, indices, values, count, totals
    ):  # type: ignore[no-untyped-def]
        words = (types.intp, types.intp)
        return types.intp(
            x, residual, out, *words, threshold, indices, values, types.intp, totals
        ), codegen

    return add_and_take


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
    past_caches,
    is_crowded,
    x,
    residual,
    out,
    start,
    stop,
    threshold,
    indices,
    values,
    count,
    totals,
):
    """The intrinsic that suits."""
    if past_caches and is_crowded:
        return _add_and_take_past_caches_crowded(
            x, residual, out, start, stop, threshold, indices, values, count, totals
        )
    if past_caches:
        return _add_and_take_past_caches(
            x, residual, out, start, stop, threshold, indices, values, count, totals
        )
    if is_crowded:
        return _add_and_take_crowded(
            x, residual, out, start, stop, threshold, indices, values, count, totals
        )
    return _add_and_take(x, residual, out, start, stop, threshold, indices, values, count, totals)


@intrinsic
def _take(typing, x, start, stop, threshold, indices, values, count):  # type: ignore[no-untyped-def]
    """Entries in whole vectors of [start, stop) that reach the threshold go to the end of the list;
    its new length."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entries, at, found = (_data(context, builder, signature, arguments, i) for i in (0, 4, 5))
        vectors = Vectors(builder, arguments[3].type)
        thresholds = vectors.splat(arguments[3])
        states = [arguments[6]]
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (
            index,
            (taken,),
            leaving,
        ):
            entry = vectors.load(entries, index)
            reaches = builder.fcmp_ordered(">=", vectors.magnitude(entry), thresholds)
            with vectors.seldom(reaches, [taken]) as changed:
                changed.append(vectors.append(entry, reaches, index, at, found, taken))
            leaving += changed
        return states[0]

    return types.intp(x, types.intp, types.intp, threshold, indices, values, types.intp), codegen


@intrinsic
def _count(typing, x, start, stop, threshold):  # type: ignore[no-untyped-def]
    """How many entries in whole vectors of [start, stop) reach the threshold."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entries = _data(context, builder, signature, arguments, 0)
        vectors = Vectors(builder, arguments[3].type)
        thresholds = vectors.splat(arguments[3])
        states = [ir.Constant(WORD, 0)]
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (
            index,
            (count,),
            leaving,
        ):
            reaches = builder.fcmp_ordered(
                ">=", vectors.magnitude(vectors.load(entries, index)), thresholds
            )
            leaving.append(builder.add(count, vectors.ones(reaches)))
        return states[0]

    return types.intp(x, types.intp, types.intp, threshold), codegen


def _make_look(adds: bool) -> Any:
    """An intrinsic over whole vectors of [start, stop): moments of x, or of out = residual + x,
    into ``totals``.

    totals : float64 [3]: sum of magnitudes, their maximum (NaN overlooked), count of non-zeros
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
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
            is_more = builder.fcmp_ordered(">", magnitude, top)
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

    return look


_add_and_look, _look = _make_look(True), _make_look(False)


@njit
def _whole(x, start, stop):  # type: ignore[no-untyped-def]
    """Where the last whole vector of [start, stop) ends."""
    lanes = 64 // x.itemsize
    return start + (stop - start) // lanes * lanes


@njit
def _goes_past_caches(residual, out, start):  # type: ignore[no-untyped-def]
    """Whether ``out`` is another array than ``residual``, too large for caches, and its vectors are
    whole lines."""
    place = out.ctypes.data
    is_line = (place + start * out.itemsize) % 64 == 0
    return is_line and place != residual.ctypes.data and out.size * out.itemsize >= LARGE_BYTES


@njit
def _look_at(entry, totals):  # type: ignore[no-untyped-def]
    magnitude = abs(entry)
    totals[0] += magnitude
    if magnitude > totals[1]:
        totals[1] = magnitude
    totals[2] += entry != 0


@njit(signatures("xxOppS", types.void), nogil=True, cache=True)
def add_and_look(gradient, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
    """out = residual + gradient in [start, stop), but residual where that is not finite; the sum's
    moments."""
    whole = _whole(gradient, start, stop)
    _add_and_look(gradient, residual, out, start, whole, totals)
    for i in range(whole, stop):
        entry = residual[i] + gradient[i]
        _look_at(entry, totals)
        out[i] = entry if abs(entry) < np.inf else residual[i]


@njit(signatures("xppS", types.void), nogil=True, cache=True)
def look(x, start, stop, totals):  # type: ignore[no-untyped-def]
    """Moments of x in [start, stop)."""
    whole = _whole(x, start, stop)
    _look(x, x, x, start, whole, totals)
    for i in range(whole, stop):
        _look_at(x[i], totals)


@njit(signatures("xxOppvJOpS"), nogil=True, cache=True)
def add_and_take(
    gradient, residual, out, start, stop, threshold, indices, values, capacity, totals
):  # type: ignore[no-untyped-def]
    """out = residual + gradient in [start, stop); how many entries are taken, or -1: more than the
    capacity, so none is.

    indices, values : room for ``capacity + SPARE`` entries
    totals : float64 [2], added to: sum of magnitudes; how many are not finite
    """
    limit, count, is_full = threshold, 0, False
    past_caches = _goes_past_caches(residual, out, start)
    is_crowded = capacity * CROWDED > stop - start
    whole = _whole(gradient, start, stop)
    first = start
    while first < stop:
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
            entry = residual[i] + gradient[i]
            magnitude = abs(entry)
            totals[0] += magnitude
            out[i] = entry
            if not magnitude < np.inf:
                totals[1] += 1
                out[i] = residual[i]
            elif magnitude >= limit:
                indices[count], values[count] = i, entry
                count += 1
                out[i] = 0
        if count > capacity:
            for i in range(count):
                out[indices[i]] = values[i]
            limit, count, is_full = gradient.dtype.type(np.inf), 0, True
        first = last
    return -1 if is_full else count


@njit(signatures("xppv"), nogil=True, cache=True)
def count_at_least(x, start, stop, threshold):  # type: ignore[no-untyped-def]
    """How many magnitudes in [start, stop) reach the threshold."""
    whole = _whole(x, start, stop)
    count = _count(x, start, whole, threshold)
    for i in range(whole, stop):
        count += abs(x[i]) >= threshold
    return count


@njit(signatures("xppvJOp"), nogil=True, cache=True)
def take(x, start, stop, threshold, indices, values, capacity):  # type: ignore[no-untyped-def]
    """The entries of [start, stop) that reach the threshold; how many, also if more than the
    capacity, beyond which they are only counted.  ``indices``, ``values``: room for ``capacity +
    SPARE``."""
    whole = _whole(x, start, stop)
    count = 0
    for first in range(start, whole, SEGMENT):
        last = min(first + SEGMENT, whole)
        count = _take(x, first, last, threshold, indices, values, count)
        if count > capacity:
            return count + count_at_least(x, last, stop, threshold)
    for i in range(whole, stop):
        if abs(x[i]) >= threshold:
            indices[count], values[count] = i, x[i]
            count += 1
    return count
