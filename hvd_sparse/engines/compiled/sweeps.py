"""The loops over whole vectors, compiled: looking, taking, counting, with or without adding the gradient first.

Written as instructions on vectors.  What survives the threshold is written out by a masked compress-store, which numba
has no word for, behind one branch that is seldom taken.  Processors with AVX-512 have it as an instruction; for others
LLVM spells it out.  Either way a loop makes one pass and is bound by memory.

Everything is compiled when this module is loaded, or read from numba's cache: never inside a training step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .signatures import signatures
from .vectors import DOUBLE, WORD, Vectors, counting

SEGMENT = 2048
"""Entries between two looks at how full the list is, which has so much room to spare.  Also how many magnitudes are
added up before the sum goes into a float64."""


def _data(context: Any, builder: Any, signature: Any, arguments: Any, position: int) -> Any:
    return context.make_array(signature.args[position])(context, builder, arguments[position]).data


def _add_up(builder: Any, slots: Any, position: int, amount: Any) -> None:
    slot = builder.gep(slots, [ir.Constant(WORD, position)])
    builder.store(builder.fadd(builder.load(slot), amount), slot)


@intrinsic
def _add_and_take(typing, x, residual, out, start, stop, threshold, indices, values, count, totals):  # type: ignore[no-untyped-def]
    """out = residual + x in whole vectors of [start, stop), what reaches the threshold taken out; entries in the list."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        gradient, kept, to, at, found, sums = (
            _data(context, builder, signature, arguments, i) for i in (0, 1, 2, 6, 7, 9)
        )
        vectors = Vectors(builder, arguments[5].type)
        thresholds, zero, infinite = vectors.splat(arguments[5]), vectors.constant(0.0), vectors.constant(float("inf"))
        states = [arguments[8], zero]
        with counting(builder, arguments[3], arguments[4], vectors.lanes, states) as (index, (taken, total), leaving):
            old = vectors.load(kept, index)
            entry = builder.fadd(old, vectors.load(gradient, index))
            magnitude = vectors.magnitude(entry)
            stays = builder.fcmp_ordered("<", magnitude, thresholds)  # NaN does not
            vectors.store(builder.select(stays, entry, zero), to, index)
            with vectors.seldom(builder.not_(stays), taken) as changed:
                finite = builder.fcmp_ordered("<", magnitude, infinite)
                reaches = builder.and_(builder.not_(stays), finite)
                vectors.store(builder.select(finite, builder.select(stays, entry, zero), old), to, index)
                changed.append(vectors.append(entry, reaches, index, at, found, taken))
                _add_up(builder, sums, 1, builder.uitofp(vectors.ones(builder.not_(finite)), DOUBLE))
            leaving += [changed[0], builder.fadd(total, magnitude)]
        _add_up(builder, sums, 0, vectors.sum(states[1]))
        return states[0]

    words = (types.intp, types.intp)
    return types.intp(x, residual, out, *words, threshold, indices, values, types.intp, totals), codegen


@intrinsic
def _take(typing, x, start, stop, threshold, indices, values, count):  # type: ignore[no-untyped-def]
    """Entries in whole vectors of [start, stop) that reach the threshold go to the end of the list; its new length."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entries, at, found = (_data(context, builder, signature, arguments, i) for i in (0, 4, 5))
        vectors = Vectors(builder, arguments[3].type)
        thresholds = vectors.splat(arguments[3])
        states = [arguments[6]]
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (index, (taken,), leaving):
            entry = vectors.load(entries, index)
            reaches = builder.fcmp_ordered(">=", vectors.magnitude(entry), thresholds)
            with vectors.seldom(reaches, taken) as changed:
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
        with counting(builder, arguments[1], arguments[2], vectors.lanes, states) as (index, (count,), leaving):
            reaches = builder.fcmp_ordered(">=", vectors.magnitude(vectors.load(entries, index)), thresholds)
            leaving.append(builder.add(count, vectors.ones(reaches)))
        return states[0]

    return types.intp(x, types.intp, types.intp, threshold), codegen


def _make_look(adds: bool) -> Any:
    """An intrinsic over whole vectors of [start, stop): moments of x, or of out = residual + x, into ``totals``.

    totals : float64 [3]: sum of magnitudes, their maximum (NaN overlooked), count of non-zeros
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        x, kept, to, totals = (_data(context, builder, signature, arguments, i) for i in (0, 1, 2, 5))
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
def _look_at(entry, totals):  # type: ignore[no-untyped-def]
    magnitude = abs(entry)
    totals[0] += magnitude
    if magnitude > totals[1]:
        totals[1] = magnitude
    totals[2] += entry != 0


@njit(signatures("xxOppS", types.void), nogil=True, cache=True)
def add_and_look(gradient, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
    """out = residual + gradient in [start, stop), but residual where that is not finite; the sum's moments."""
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
def add_and_take(gradient, residual, out, start, stop, threshold, indices, values, capacity, totals):  # type: ignore[no-untyped-def]
    """out = residual + gradient in [start, stop); how many entries are taken, or -1: more than the capacity, so none is.

    indices, values : room for ``capacity + SEGMENT`` entries
    totals : float64 [2], added to: sum of magnitudes; how many are not finite
    """
    limit, count, is_full = threshold, 0, False
    whole = _whole(gradient, start, stop)
    first = start
    while first < stop:
        last = min(first + SEGMENT, whole) if first < whole else stop
        if last <= whole:
            count = _add_and_take(gradient, residual, out, first, last, limit, indices, values, count, totals)
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
    """The entries of [start, stop) that reach the threshold; how many, also if more than the capacity, beyond which they
    are only counted.  ``indices``, ``values``: room for ``capacity + SEGMENT``."""
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
