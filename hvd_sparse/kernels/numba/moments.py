"""Moments of a vector, or of the sum with the gradient while it is written: in one pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.intrinsics import Call, instructions
from hvd_sparse.kernels.numba.segments import whole_end
from hvd_sparse.kernels.numba.signatures import signatures
from hvd_sparse.kernels.numba.vectors import DOUBLE, WORD, counting


def _make_look(adds: bool) -> Callable[..., object]:
    """Make an intrinsic over whole vectors: the moments of x, or of out = residual + x.

    Parameters
    ----------
    adds : add the residual first, and write the sum

    The intrinsic adds to ``totals``, float64 [3]: sum of magnitudes, their maximum (NaN
    overlooked), count of non-zeros.
    """

    def emit(call: Call) -> None:
        x, kept, to, totals = call.pointers(0, 1, 2, 5)
        builder, vectors, (start, stop) = call.builder, call.vectors, call.arguments[3:5]
        zero, infinite = vectors.constant(0.0), vectors.constant(float("inf"))
        states = [*vectors.no_doubles(), zero, ir.Constant(WORD, 0)]
        with counting(builder, start, stop, vectors.lanes, states) as (
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
            leaving += [
                # Summed as doubles: a float32 sum over a long vector loses its last digits.
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
    whole = whole_end(gradient, start, stop)
    _add_and_look(gradient, residual, out, start, whole, totals)
    for i in range(whole, stop):
        entry = residual[i] + gradient[i]
        _look_at(entry, totals)
        out[i] = entry if abs(entry) < np.inf else residual[i]


@njit(signatures("xppS", types.void), nogil=True, cache=True)
def look(x, start, stop, totals):  # type: ignore[no-untyped-def]
    """Add the moments of x in [start, stop) to ``totals``."""
    whole = whole_end(x, start, stop)
    _look(x, x, x, start, whole, totals)
    for i in range(whole, stop):
        _look_at(x[i], totals)
