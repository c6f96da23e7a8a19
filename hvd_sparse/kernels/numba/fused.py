"""The fused pass: adds the gradient, or an optimizer's direction, to the residual, and takes the
entries that reach the aim."""

from __future__ import annotations

import numpy as np
from numba import njit

from hvd_sparse.kernels.numba.added import entry_added
from hvd_sparse.kernels.numba.patterns import pattern_of
from hvd_sparse.kernels.numba.segments import SEGMENT, whole_end
from hvd_sparse.kernels.numba.signatures import signatures
from hvd_sparse.kernels.numba.vector_pass import add_and_take_vectors

LARGE_BYTES = 1 << 22
"""Bytes of an array that the caches do not keep until its next use."""

CROWDED = 10
"""Entries of a vector for each place in the list; with fewer, branches cannot be guessed."""


@njit
def _go_past_caches(residual, out, start):  # type: ignore[no-untyped-def]
    """Tell whether writes to ``out`` may go past the caches.

    It must be another array than ``residual``, too large for the caches, and its vectors must be
    whole lines.
    """
    # In place the lines have been read already, and are in the caches.
    place = out.ctypes.data
    is_line = (place + start * out.itemsize) % 64 == 0
    return is_line and place != residual.ctypes.data and out.size * out.itemsize >= LARGE_BYTES


@njit
def _take(  # type: ignore[no-untyped-def]
    gradient, residual, out, direction, past_caches,
    start, stop, cut, indices, values, capacity, totals,
):  # fmt: skip
    """Write out = residual + what is added in [start, stop), and take the entries that reach the
    cut.

    Returns how many entries are taken, or -1: more than the capacity, so none is.

    Parameters
    ----------
    direction : what is added, see ``added``
    past_caches : write past the caches
    cut : bit pattern of the threshold, above 0
    indices, values : room for ``capacity + SPARE`` entries
    totals : float64 [2], added to: sum of magnitudes; how many are not finite
    """
    limit, count, is_full = cut, 0, False
    _, nothing_reaches = pattern_of(gradient.dtype.type(np.inf))
    is_crowded = capacity * CROWDED > stop - start
    whole = whole_end(gradient, start, stop)
    first = start
    while first < stop:
        # A segment at a time: sums in float32 stay short, and a full list is noticed before it is
        # written past its room.
        last = min(first + SEGMENT, whole) if first < whole else stop
        if last <= whole:
            count = add_and_take_vectors(
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
                direction,
            )
        for i in range(max(first, whole), last):
            old = residual[i]  # read before anything is written: ``out`` may be ``residual``
            entry = old + entry_added(gradient, direction, i)
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


@njit
def _take_added(gradient, residual, out, stop, cut, indices, values, capacity, totals):  # type: ignore[no-untyped-def]
    """Do as ``_take`` from the beginning; the gradient is added, of a vector that caches hold."""
    return _take(
        gradient, residual, out, (), False, 0, stop, cut, indices, values, capacity, totals
    )


@njit(signatures("xxOpppJOpS"), nogil=True, cache=True)
def add_and_take(gradient, residual, out, start, stop, cut, indices, values, capacity, totals):  # type: ignore[no-untyped-def]
    """Do as ``_take``; the gradient is added."""
    return _take(
        gradient, residual, out, (), _go_past_caches(residual, out, start),
        start, stop, cut, indices, values, capacity, totals,
    )  # fmt: skip


@njit(signatures("xxOxOvppppJOpS"), nogil=True, cache=True)
def push_and_take(  # type: ignore[no-untyped-def]
    gradient, residual, out, velocity, out_velocity, momentum, is_nesterov,
    start, stop, cut, indices, values, capacity, totals,
):  # fmt: skip
    """Do as ``_take``; the velocity is pushed first, and where it goes is added."""
    past_caches = _go_past_caches(residual, out, start)
    return _take(
        gradient, residual, out, (velocity, out_velocity, momentum, is_nesterov),
        past_caches and _go_past_caches(velocity, out_velocity, start),
        start, stop, cut, indices, values, capacity, totals,
    )  # fmt: skip


@njit(signatures("xxOxxOOvvvvvvvvvvppppJOpS"), nogil=True, cache=True)
def push_adam_and_take(  # type: ignore[no-untyped-def]
    gradient, residual, out, mean, square, out_mean, out_square,
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale, is_of_mean,
    start, stop, cut, indices, values, capacity, totals,
):  # fmt: skip
    """Do as ``_take``; the moments are moved first, and Adam's direction is added."""
    past_caches = _go_past_caches(residual, out, start) and _go_past_caches(mean, out_mean, start)
    direction = (
        mean, square, out_mean, out_square,
        beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale, is_of_mean,
    )  # fmt: skip
    return _take(
        gradient, residual, out, direction,
        past_caches and _go_past_caches(square, out_square, start),
        start, stop, cut, indices, values, capacity, totals,
    )  # fmt: skip
