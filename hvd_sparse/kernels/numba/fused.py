"""The compiled ``accumulate_and_take``: one pass adds the gradient, or an optimizer's direction, to
the residual, and takes the entries that reach the aim's threshold. ``direct`` only computes a
direction.

Taken entries are appended to the list with LLVM's vector compression, which numba does not offer.
The direction is a tuple of what ``kernels.optimizers.operands`` returns. Its length identifies its
kind, as in ``kernels.rows``; an empty tuple stands for the gradient itself. The loops must not fuse
or reorder operations, because results must equal numpy's to the bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import overload

from hvd_sparse.kernels.numba.vectors import (
    LARGE_BYTES,
    SEGMENT,
    WORD,
    Call,
    Vectors,
    bits_of,
    compiled,
    counting,
    cut_of,
    emitted,
    signatures,
)
from hvd_sparse.kernels.optimizers import LEAST_PART
from hvd_sparse.kernels.rows import ADAM, DECAY, MOMENTUM

Store = Callable[[ir.Value, ir.Value, ir.Value], None]
Added = Callable[[ir.Value], ir.Value]
"""Function of an index, which emits the instructions for the SIMD vector to add there."""

CROWDED = 10
"""If a vector has fewer than this many entries per place in the list, so many entries may be taken
that a branch on whether an entry is taken would be unpredictable."""


def vectors_added(call: Call, vectors: Vectors, store: Store) -> Added:
    """Return a function of an index, which emits instructions that compute the SIMD vector to add
    to the residual at this index. In ``call``, the kernel's first argument is the gradient, and its
    last argument is an optimizer's direction. The vector has entries of the gradient if the
    direction is empty, and otherwise entries of the direction. ``store`` emits the writes of the
    direction's new vectors (velocity or moments)."""
    (gradient,) = call.pointers(0)
    members = call.members(-1)
    if len(members) == DECAY:
        return _decay(call, vectors, gradient, *members)
    if len(members) == MOMENTUM:
        return _momentum(call, vectors, gradient, store, *members)
    if len(members) == ADAM:
        return _adam(call, vectors, gradient, store, *members)
    return lambda index: vectors.load(gradient, index)


def _decay(
    call: Call, vectors: Vectors, gradient: ir.Value, parameter: ir.Value, decay: ir.Value
) -> Added:
    builder = call.builder
    factor = vectors.splat(decay)

    def added(index: ir.Value) -> ir.Value:
        pull = builder.fmul(vectors.load(parameter, index), factor)
        return builder.fadd(pull, vectors.load(gradient, index))

    return added


def _momentum(
    call: Call,
    vectors: Vectors,
    gradient: ir.Value,
    store: Store,
    velocity: ir.Value,
    out_velocity: ir.Value,
    momentum: ir.Value,
    is_nesterov: ir.Value,
) -> Added:
    builder = call.builder
    factor, nesterov = vectors.splat(momentum), call.is_set(is_nesterov)

    def added(index: ir.Value) -> ir.Value:
        entry, old = vectors.load(gradient, index), vectors.load(velocity, index)
        pushed = builder.fadd(builder.fmul(old, factor), entry)
        store(pushed, out_velocity, index)
        ahead = builder.fadd(builder.fmul(pushed, factor), entry)
        return builder.select(nesterov, ahead, pushed)

    return added


def _adam(
    call: Call,
    vectors: Vectors,
    gradient: ir.Value,
    store: Store,
    mean: ir.Value,
    square: ir.Value,
    out_mean: ir.Value,
    out_square: ir.Value,
    *numbers: ir.Value,
) -> Added:
    builder = call.builder
    times, plus, nothing = builder.fmul, builder.fadd, vectors.constant(0.0)
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale = (
        vectors.splat(number) for number in numbers[:-1]
    )
    is_of_mean = call.is_set(numbers[-1])

    def added(index: ir.Value) -> ir.Value:
        entry, before = vectors.load(gradient, index), vectors.load(mean, index)
        after = plus(times(before, beta1), times(entry, rest1))
        squared = times(times(entry, entry), rest2)
        second = plus(times(vectors.load(square, index), beta2), squared)
        store(after, out_mean, index)
        store(second, out_square, index)
        first = times(builder.select(is_of_mean, after, before), unbias1)
        second = times(second, unbias2)
        both = times(first, first)
        least = builder.select(builder.fcmp_ordered("<", both, second), both, second)
        average = plus(times(second, own), times(least, others))
        floor = times(times(squared, unbias2), vectors.constant(LEAST_PART))
        average = builder.select(builder.fcmp_ordered("<", average, floor), floor, average)
        root = vectors.call(f"llvm.sqrt.{vectors.suffix}", vectors.floats, average)
        top = builder.select(is_of_mean, first, entry)
        # As in ``Kernels.directed``: adding infinity times 0 gives NaN if the average overflowed.
        step = plus(builder.fdiv(top, plus(root, epsilon)), times(average, nothing))
        return times(step, scale)

    return added


def _make_add_and_take(past_caches: bool, is_crowded: bool) -> Callable[..., Any]:
    """Make a function that adds the gradient or an optimizer's direction to the residual,
    and writes the sum to ``out``. Entries that reach a threshold are appended to a list, and become
    0 in ``out``.

    past_caches : write ``out``, which must be aligned to 64 bytes, without first reading its cache
        lines
    is_crowded : append without a branch, for lists of many entries: every vector is written to the
        list, and the next append overwrites the entries that were not taken
    """

    def add_span(
        call: Call, vectors: Vectors, start: ir.Value, stop: ir.Value, states: list[ir.Value]
    ) -> None:
        kept, to, at, found, bad = call.pointers(1, 2, 6, 7, 9)
        builder, cut = call.builder, call.arguments[5]
        is_past = past_caches and vectors.lanes > 1
        store = vectors.store_past_caches if is_past else vectors.store
        cuts, infinity = vectors.splat_pattern(cut), vectors.infinity()
        zero, added = vectors.constant(0.0), vectors_added(call, vectors, store)
        loop = counting(builder, start, stop, vectors.lanes, states)
        with loop as (index, (taken,), leaving):
            old = vectors.load(kept, index)
            entry = builder.fadd(old, added(index))
            patterns = vectors.patterns(entry)
            stays = builder.icmp_signed("<", patterns, cuts)  # false for NaN
            finite = builder.icmp_signed("<", patterns, infinity)

            # Called for every vector if ``is_crowded``, otherwise only in the rare branch.
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
                slot = builder.gep(bad, [ir.Constant(WORD, 0)])
                nonfinite = vectors.ones(builder.not_(finite))
                builder.store(builder.add(builder.load(slot), nonfinite), slot)
            store(changed[1], to, index)
            leaving.append(changed[0])

    def emit(call: Call) -> ir.Value:
        states = [call.arguments[8]]
        for vectors, start, stop in call.spans(*call.arguments[3:5]):
            add_span(call, vectors, start, stop, states)
        if past_caches:
            call.builder.fence("seq_cst")  # make these writes visible to other threads
        return states[0]

    return emitted(emit, types.intp)


# Every combination of the two options is compiled, so that the loops need no branch for them.
_add_and_take = _make_add_and_take(False, False)
_add_and_take_crowded = _make_add_and_take(False, True)
_add_and_take_past_caches = _make_add_and_take(True, False)
_add_and_take_past_caches_crowded = _make_add_and_take(True, True)


@njit
def _add_and_take_segment(past_caches, is_crowded, *arguments):  # type: ignore[no-untyped-def]
    if past_caches and is_crowded:
        return _add_and_take_past_caches_crowded(*arguments)
    if past_caches:
        return _add_and_take_past_caches(*arguments)
    if is_crowded:
        return _add_and_take_crowded(*arguments)
    return _add_and_take(*arguments)


@njit
def _go_past_caches(residual, out, start):  # type: ignore[no-untyped-def]
    """Return whether to write ``out`` past the caches, which means without first reading its cache
    lines. This is so if ``out`` is aligned at ``start``, large, and not the residual itself, whose
    lines are in the caches already."""
    place = out.ctypes.data
    is_line = (place + start * out.itemsize) % 64 == 0
    return is_line and place != residual.ctypes.data and out.size * out.itemsize >= LARGE_BYTES


def _moves_past_caches(direction: tuple, start: int) -> bool:
    """Return whether the new vectors of an optimizer's direction (velocity or moments) can all be
    written past the caches, as ``_go_past_caches`` requires. True if there are none."""
    raise NotImplementedError  # numba uses the overload below


@overload(_moves_past_caches)
def _direction_past_caches(direction, start):  # type: ignore[no-untyped-def]
    if len(direction) == MOMENTUM:
        return lambda direction, start: _go_past_caches(direction[0], direction[1], start)
    if len(direction) == ADAM:
        return lambda direction, start: (
            _go_past_caches(direction[0], direction[2], start)
            and _go_past_caches(direction[1], direction[3], start)
        )
    return lambda direction, start: True


_GIVEN = "", "xv", "xOvp", "xxOOvvvvvvvvvvp"
"""Types of the four kinds of direction, spelled in the letters of ``signatures``."""


@compiled(signatures("xxOdppfJOpI", given=_GIVEN))
def add_and_take(  # type: ignore[no-untyped-def]
    gradient, residual, out, direction, start, stop, threshold, indices, values, capacity, nonfinite
):
    """Do ``Kernels.accumulate_and_take`` in [start, stop). The lists have ``SPARE`` places more
    than ``capacity``. Return the number of taken entries, or -1 if they exceed ``capacity``. The
    number of entries that are not finite is added to ``nonfinite``, intp [1]."""
    past_caches = _go_past_caches(residual, out, start) and _moves_past_caches(direction, start)
    _, _, infinity = bits_of(gradient)
    # A cut of NaN would also let infinite sums stay in ``out``.
    limit, count, is_full = min(cut_of(out, threshold), np.intp(infinity)), 0, False
    is_crowded = capacity * CROWDED > stop - start
    # Work in segments, so that a full list is noticed before entries are written beyond its end.
    for first in range(start, stop, SEGMENT):
        last = min(first + SEGMENT, stop)
        count = _add_and_take_segment(
            past_caches, is_crowded,
            gradient, residual, out, first, last, limit, indices, values, count, nonfinite,
            direction,
        )  # fmt: skip
        if count > capacity:
            # Too many entries: write them back; the rest gets an infinite cut, which takes none.
            for i in range(count):
                out[indices[i]] = values[i]
            limit, count, is_full = np.intp(infinity), 0, True
    return -1 if is_full else count


def _emit_direct(call: Call) -> None:
    (to,) = call.pointers(1)
    start, stop = call.arguments[2:4]
    for vectors, first, last in call.spans(start, stop):
        added = vectors_added(call, vectors, vectors.store)
        with counting(call.builder, first, last, vectors.lanes, []) as (index, _, _):
            vectors.store(added(index), to, index)


_direct = emitted(_emit_direct)


@compiled(signatures("xOdpp", types.void, _GIVEN[1:]))
def direct(gradient, out, direction, start, stop):  # type: ignore[no-untyped-def]
    _direct(gradient, out, start, stop, direction)
