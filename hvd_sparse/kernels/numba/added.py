"""Summands of the fused pass: a gradient, or the direction that an optimizer makes of it.

A direction is told by a tuple whose length says which it is, and which compiled code can look into:

    ()                                         the gradient itself
    (velocity, out_velocity, momentum, is_nesterov)                         momentum
    (mean, square, out_mean, out_square, beta1, rest1, unbias1, beta2, rest2, unbias2, own, others,
     epsilon, scale, is_of_mean)                                            Adam, as in ``AdamStep``

Numbers are multiplied and added one at a time, each rounded, as ``directions`` does it.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from llvmlite import ir
from numba.extending import overload

from hvd_sparse.kernels.numba.directions import adam_entry, moving
from hvd_sparse.kernels.numba.intrinsics import Call

GRADIENT, MOMENTUM, ADAM = 0, 4, 15
"""Lengths of the tuples."""
DIRECTION = 10
"""Where the tuple stands among the intrinsic's arguments."""

Store = Callable[[ir.Value, ir.Value, ir.Value], None]
Added = Callable[[ir.Value], ir.Value]
"""Gives the vector that is added at an index."""


def vectors_added(call: Call, store: Store) -> Added:
    """Return what gives the vectors that are added, to be called in the loop.

    Parameters
    ----------
    call : of the intrinsic, whose first argument is the gradient
    store : writes a vector of a memory's
    """
    (gradient,) = call.pointers(0)
    members = call.members(DIRECTION)
    if len(members) == MOMENTUM:
        return _momentum(call, gradient, store, *members)
    if len(members) == ADAM:
        return _adam(call, gradient, store, *members)
    return lambda index: call.vectors.load(gradient, index)


def _momentum(
    call: Call,
    gradient: ir.Value,
    store: Store,
    velocity: ir.Value,
    out_velocity: ir.Value,
    momentum: ir.Value,
    is_nesterov: ir.Value,
) -> Added:
    """Return what pushes the velocity, and gives where it goes."""
    builder, vectors = call.builder, call.vectors
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
    gradient: ir.Value,
    store: Store,
    mean: ir.Value,
    square: ir.Value,
    out_mean: ir.Value,
    out_square: ir.Value,
    *numbers: ir.Value,
) -> Added:
    """Return what writes the moments, and gives Adam's direction."""
    builder, vectors = call.builder, call.vectors
    times, plus, nothing = builder.fmul, builder.fadd, vectors.constant(0.0)
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale = (
        vectors.splat(number) for number in numbers[:-1]
    )
    is_of_mean = call.is_set(numbers[-1])

    def added(index: ir.Value) -> ir.Value:
        entry = vectors.load(gradient, index)
        first = plus(times(vectors.load(mean, index), beta1), times(entry, rest1))
        squared = times(times(entry, entry), rest2)
        second = plus(times(vectors.load(square, index), beta2), squared)
        store(first, out_mean, index)
        store(second, out_square, index)
        first, second = times(first, unbias1), times(second, unbias2)
        both = times(first, first)
        least = builder.select(builder.fcmp_ordered("<", both, second), both, second)
        average = plus(times(second, own), times(least, others))
        root = vectors.call(f"llvm.sqrt.{vectors.suffix}", vectors.floats, average)
        top = builder.select(is_of_mean, first, entry)
        # Divided by an infinite square, nothing would show: infinity times 0 is no number.
        step = plus(builder.fdiv(top, plus(root, epsilon)), times(average, nothing))
        return times(step, scale)

    return added


def entry_added(gradient: np.ndarray, direction: tuple, i: int) -> float:
    """Return the entry that is added at ``i``: what ``vectors_added`` gives, for the last few."""
    raise NotImplementedError  # compiled code calls the overload


@overload(entry_added)
def _entry_added(gradient, direction, i):  # type: ignore[no-untyped-def]
    """Choose by the direction's type."""

    def of_gradient(gradient, direction, i):  # type: ignore[no-untyped-def]
        return gradient[i]

    def of_momentum(gradient, direction, i):  # type: ignore[no-untyped-def]
        velocity, out_velocity, momentum, is_nesterov = direction
        entry = gradient[i]
        pushed = velocity[i] * momentum + entry
        out_velocity[i] = pushed
        return pushed * momentum + entry if is_nesterov else pushed

    def of_adam(gradient, direction, i):  # type: ignore[no-untyped-def]
        (mean, square, out_mean, out_square, beta1, rest1, unbias1, beta2, rest2, unbias2,
         own, others, epsilon, scale, is_of_mean) = direction  # fmt: skip
        entry = gradient[i]
        first = moving(mean[i], entry, beta1, rest1)
        second = moving(square[i], entry * entry, beta2, rest2)
        out_mean[i], out_square[i] = first, second
        first, second = first * unbias1, second * unbias2
        top = first if is_of_mean else entry
        return adam_entry(top, first, second, own, others, epsilon, scale)

    return {GRADIENT: of_gradient, MOMENTUM: of_momentum, ADAM: of_adam}[len(direction)]
