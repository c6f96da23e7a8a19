"""Compiled passes over a vector: its moments, and the list of the entries that reach a threshold.
The loops compare bit patterns; a cut is the bit pattern of a threshold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from hvd_sparse.kernels.numba.vectors import (
    DOUBLE,
    INDEX,
    SEGMENT,
    WORD,
    Call,
    compiled,
    counting,
    cut_of,
    emitted,
    signatures,
)


def _emit_take(call: Call) -> ir.Value:
    entries, at, found = call.pointers(0, 4, 5)
    builder, (start, stop, cut) = call.builder, call.arguments[1:4]
    states = [call.arguments[6]]
    for vectors, first, last in call.spans(start, stop):
        cuts = vectors.splat_pattern(cut)
        with counting(builder, first, last, vectors.lanes, states) as (index, (taken,), leaving):
            entry = vectors.load(entries, index)
            patterns = vectors.patterns(entry)
            is_number = builder.icmp_signed("<=", patterns, vectors.infinity())
            reaches = builder.and_(builder.icmp_signed(">=", patterns, cuts), is_number)
            # Append only if any lane reaches the cut, because in most SIMD vectors none does.
            with vectors.seldom(reaches, [taken]) as changed:
                changed.append(vectors.append(entry, reaches, index, at, found, taken))
            leaving += changed
    return states[0]


_take = emitted(_emit_take, types.intp)


@compiled(signatures("xppfJOp"))
def take(x, start, stop, threshold, indices, values, capacity):  # type: ignore[no-untyped-def]
    """Return the number of non-zero entries of x[start:stop] that reach the threshold. Write their
    indices and values to lists of ``capacity + SPARE`` places. If the number is above ``capacity``,
    some entries are missing in the lists."""
    cut, count, dropped = cut_of(x, threshold), 0, 0
    for first in range(start, stop, SEGMENT):
        last = min(first + SEGMENT, stop)
        count = _take(x, first, last, cut, indices, values, count)
        if count > capacity:  # the list is full: overwrite it, and go on counting
            count, dropped = 0, dropped + count
    return dropped + count


def _make_look(adds: bool) -> Callable[..., Any]:
    """Make a function that adds the statistics of x to ``totals``: the sum of the magnitudes, the
    largest magnitude (NaN is ignored) and the number of non-zeros. If ``adds``, they are those of
    the sum residual + x instead of x. This sum is then also written to ``out``; where it is not
    finite, ``out`` gets the residual."""

    def emit(call: Call) -> None:
        x, kept, to, totals = call.pointers(0, 1, 2, 5)
        builder, (start, stop) = call.builder, call.arguments[3:5]
        sums, slot, nonzeros = (builder.gep(totals, [ir.Constant(WORD, i)]) for i in range(3))
        for vectors, first, last in call.spans(start, stop):
            zero, infinite = vectors.constant(0.0), vectors.constant(float("inf"))
            nothing = ir.Constant(vectors.doubles, [0.0] * vectors.lanes)
            so_far = builder.insert_element(nothing, builder.load(sums), ir.Constant(INDEX, 0))
            states = [so_far, zero, ir.Constant(WORD, 0)]
            loop = counting(builder, first, last, vectors.lanes, states)
            with loop as (index, (total, top, n), leaving):
                entry = vectors.load(x, index)
                if adds:
                    old = vectors.load(kept, index)
                    entry = builder.fadd(old, entry)
                magnitude = vectors.magnitude(entry)
                if adds:
                    finite = builder.fcmp_ordered("<", magnitude, infinite)
                    vectors.store(builder.select(finite, entry, old), to, index)
                # Ordered comparisons ignore NaN in the maximum; the sum becomes NaN.
                is_more = builder.fcmp_ordered(">", magnitude, top)
                leaving += [
                    # Add in float64, because long float32 sums lose digits.
                    builder.fadd(total, vectors.widened(magnitude)),
                    builder.select(is_more, magnitude, top),
                    builder.add(n, vectors.ones(builder.fcmp_unordered("!=", entry, zero))),
                ]
            total, top, n = states
            builder.store(vectors.sum_of_doubles(total), sums)
            largest = vectors.largest(top)
            is_more = builder.fcmp_ordered(">", largest, builder.load(slot))
            builder.store(builder.select(is_more, largest, builder.load(slot)), slot)
            so_many = builder.fadd(builder.load(nonzeros), builder.uitofp(n, DOUBLE))
            builder.store(so_many, nonzeros)

    return emitted(emit)


_add_and_look, _look = _make_look(True), _make_look(False)


@compiled(signatures("xxOppS", types.void))
def add_and_look(gradient, residual, out, start, stop, totals):  # type: ignore[no-untyped-def]
    _add_and_look(gradient, residual, out, start, stop, totals)


@compiled(signatures("xppS", types.void))
def look(x, start, stop, totals):  # type: ignore[no-untyped-def]
    _look(x, x, x, start, stop, totals)
