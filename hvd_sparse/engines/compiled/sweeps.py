"""The loops over whole vectors, compiled: moments and taking, with or without adding the gradient first.

Written as instructions on vectors: what survives the threshold is written out by a masked compress-store, which numba
has no word for, behind one branch that is seldom taken.  Processors with AVX-512 have it as an instruction; for others
LLVM spells it out.  Either way the loop makes one pass and is bound by memory.

Everything is compiled when this module is loaded, or read from numba's cache: never inside a training step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from .signatures import signatures
from .vectors import DOUBLE, INDEX, WORD, Vectors, counting

SEGMENT = 4096
"""Entries between two looks at how full the list of candidates is; the list has so much room to spare."""


def _make_sweep(adds: bool) -> Any:
    """An intrinsic over whole vectors of entries in [start, stop): how many are in the list afterwards.

    Arguments: x, residual, out, start, stop, threshold, indices, values, count, totals.
    adds : out = residual + x, what is taken is zero in it, and what is not finite keeps the residual and is not taken;
        else x is only looked at
    totals : float64 [3], added to: sum of magnitudes, their maximum, count of non-zeros
    """

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        def data(position: int) -> Any:
            return context.make_array(signature.args[position])(context, builder, arguments[position]).data

        x, residual, out, indices, values, totals = (data(i) for i in (0, 1, 2, 6, 7, 9))
        start, stop, threshold, count = (arguments[i] for i in (3, 4, 5, 8))
        scalar = threshold.type
        loop = Vectors(builder, scalar)
        thresholds, zero = loop.splat(threshold, loop.floats), loop.constant(0.0)
        lanes = ir.Constant(loop.indices, list(range(loop.lanes)))
        no_sum = ir.Constant(loop.half, [0.0] * (loop.lanes // 2))
        states = [count, no_sum, no_sum, zero, ir.Constant(WORD, 0)]
        with counting(builder, start, stop, loop.lanes, states) as (index, (taken, low, high, top, nonzeros), leaving):
            entry = loop.load(x, index)
            if adds:
                kept = loop.load(residual, index)
                entry = builder.fadd(kept, entry)
            magnitude = loop.call(f"llvm.fabs.{loop.suffix}", loop.floats, entry)
            reaches = builder.fcmp_ordered(">=", magnitude, thresholds)
            if adds:
                finite = builder.fcmp_ordered("<", magnitude, loop.constant(float("inf")))
                reaches = builder.and_(reaches, finite)
                rest = builder.select(reaches, zero, builder.select(finite, entry, kept))
                loop.store(rest, out, index)
            low = builder.fadd(low, loop.doubles(magnitude, 0))
            high = builder.fadd(high, loop.doubles(magnitude, loop.lanes // 2))
            top = builder.select(builder.fcmp_ordered(">", magnitude, top), magnitude, top)
            nonzeros = builder.add(nonzeros, loop.ones(builder.fcmp_unordered("!=", entry, zero)))
            looked = builder.block
            with builder.if_then(loop.is_any(reaches), likely=False):
                positions = builder.add(loop.splat(builder.trunc(index, INDEX), loop.indices), lanes)
                loop.compress_store(entry, reaches, values, taken)
                loop.compress_store(positions, reaches, indices, taken)
                more = builder.add(taken, loop.ones(reaches))
                wrote = builder.block
            after = builder.phi(WORD)
            after.add_incoming(taken, looked)
            after.add_incoming(more, wrote)
            leaving += [after, low, high, top, nonzeros]
        taken, low, high, top, nonzeros = states
        half = f"v{loop.lanes // 2}f64"
        total = loop.call(f"llvm.vector.reduce.fadd.{half}", DOUBLE, ir.Constant(DOUBLE, 0.0), builder.fadd(low, high))
        largest = loop.call(f"llvm.vector.reduce.fmax.{loop.suffix}", scalar, top)
        if scalar != DOUBLE:
            largest = builder.fpext(largest, DOUBLE)
        slots = [builder.gep(totals, [ir.Constant(WORD, i)]) for i in range(3)]
        sum_so_far, largest_so_far, nonzeros_so_far = (builder.load(slot) for slot in slots)
        builder.store(builder.fadd(sum_so_far, total), slots[0])
        is_larger = builder.fcmp_ordered(">", largest, largest_so_far)
        builder.store(builder.select(is_larger, largest, largest_so_far), slots[1])
        builder.store(builder.fadd(nonzeros_so_far, builder.sitofp(nonzeros, DOUBLE)), slots[2])
        return taken

    @intrinsic
    def sweep(typing, x, residual, out, start, stop, threshold, indices, values, count, totals):  # type: ignore[no-untyped-def]
        words = (types.intp, types.intp)
        return types.intp(x, residual, out, *words, threshold, indices, values, types.intp, totals), codegen

    return sweep


_add_and_take, _look_and_take = _make_sweep(True), _make_sweep(False)


_add_and_take, _look_and_take = _make_sweep(True), _make_sweep(False)


@njit(signatures("xxOppvJOpS"), nogil=True, cache=True)
def add_and_take(gradient, residual, out, start, stop, threshold, indices, values, capacity, totals):  # type: ignore[no-untyped-def]
    """out = residual + gradient in [start, stop); how many entries are taken, or -1: more than the capacity, so none is.

    indices, values : room for ``capacity + SEGMENT`` entries
    totals : float64 [3], added to: sum of magnitudes, their maximum, count of non-zeros
    """
    infinity = gradient.dtype.type(np.inf)
    limit, count, is_full = threshold, 0, False
    whole = start + (stop - start) // (64 // gradient.itemsize) * (64 // gradient.itemsize)
    first = start
    while first < stop:
        last = min(first + SEGMENT, whole) if first < whole else stop
        if last <= whole:
            count = _add_and_take(gradient, residual, out, first, last, limit, indices, values, count, totals)
        else:
            for i in range(first, last):
                entry = residual[i] + gradient[i]
                magnitude = abs(entry)
                totals[0] += magnitude
                totals[1] = max(totals[1], magnitude)
                totals[2] += entry != 0
                if not magnitude < infinity:
                    entry = residual[i]
                elif magnitude >= limit:
                    indices[count], values[count] = i, entry
                    count += 1
                    entry = gradient.dtype.type(0)
                out[i] = entry
        if count > capacity:
            for i in range(count):
                out[indices[i]] = values[i]
            limit, count, is_full = infinity, 0, True
        first = last
    return -1 if is_full else count


@njit(signatures("xppvJOS"), nogil=True, cache=True)
def look_and_take(x, start, stop, threshold, indices, values, totals):  # type: ignore[no-untyped-def]
    """The entries of [start, stop) that reach the threshold, which NaN is for none; how many there are.

    indices, values : room for as many
    totals : as in ``add_and_take``
    """
    whole = start + (stop - start) // (64 // x.itemsize) * (64 // x.itemsize)
    count = _look_and_take(x, x, x, start, whole, threshold, indices, values, 0, totals)
    for i in range(whole, stop):
        magnitude = abs(x[i])
        totals[0] += magnitude
        totals[1] = max(totals[1], magnitude)
        totals[2] += x[i] != 0
        if magnitude >= threshold:
            indices[count], values[count] = i, x[i]
            count += 1
    return count


@njit(signatures("xppv"), nogil=True, cache=True)
def count_at_least(x, start, stop, threshold):  # type: ignore[no-untyped-def]
    """How many magnitudes in [start, stop) reach the threshold."""
    count = 0
    for i in range(start, stop):
        count += abs(x[i]) >= threshold
    return count
