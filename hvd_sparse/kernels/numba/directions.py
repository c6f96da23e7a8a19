"""Directions of optimizers, entry by entry in one pass: momentum, and Adam on a gradient.

Numbers are multiplied and added one at a time, each rounded, as numpy does: no loop is allowed to
fuse or reorder them.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from hvd_sparse.kernels.numba.vectors import signatures

BLOCK = 1 << 11
"""Entries that stay in the first cache from one loop over them to the next."""


@njit
def _moving(old, entry, factor, rest):  # type: ignore[no-untyped-def]
    return old * factor + entry * rest


# Division by zero gives infinity, as numpy's; asking for it first would keep LLVM from vectors.
@njit(error_model="numpy")
def _adam_entry(top, first, second, own, others, epsilon, scale):  # type: ignore[no-untyped-def]
    """Return the direction: ``top`` divided by the moments without the bias of their start."""
    both = first * first
    average = second * own + (both if both < second else second) * others
    # Divided by an infinite square, nothing would show: infinity times 0 is no number.
    return (top / (math.sqrt(average) + epsilon) + average * (epsilon - epsilon)) * scale


@njit
def _push(gradient, old, new, factor, rest, is_square):  # type: ignore[no-untyped-def]
    for i in range(new.size):
        entry = gradient[i] * gradient[i] if is_square else gradient[i]
        new[i] = _moving(old[i], entry, factor, rest)


@njit
def _copy(x, out):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        out[i] = x[i]


@njit(error_model="numpy")
def _direct(top, mean, square, out, unbias1, unbias2, own, others, epsilon, scale):  # type: ignore[no-untyped-def]
    for i in range(out.size):
        first, second = mean[i] * unbias1, square[i] * unbias2
        out[i] = _adam_entry(top[i], first, second, own, others, epsilon, scale)


@njit(signatures("xxOvpp", types.void), nogil=True, cache=True)
def push(gradient, residual, out, momentum, start, stop):  # type: ignore[no-untyped-def]
    """Write out = momentum * residual + gradient in [start, stop)."""
    # By way of memory of its own: where ``out`` is ``residual``, LLVM makes no vector instructions.
    pushed = np.empty(BLOCK, out.dtype)
    for low in range(start, stop, BLOCK):
        part = slice(low, min(low + BLOCK, stop))
        entries, old = gradient[part], residual[part]
        new = pushed[: old.size]
        for i in range(new.size):
            new[i] = old[i] * momentum + entries[i]
        _copy(new, out[part])


@njit(signatures("xxxOOOvvvvvvvvvvppp", types.void), nogil=True, cache=True)
def push_adam(  # type: ignore[no-untyped-def]
    gradient, mean, square, out_mean, out_square, out,
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale,
    is_of_mean, start, stop,
):  # fmt: skip
    """Write the moments and the direction in [start, stop), as the contract says."""
    # Several short loops over memory of their own: of six vectors in one, or of vectors that may be
    # the same, LLVM cannot make vector instructions.
    means, squares = np.empty(BLOCK, out.dtype), np.empty(BLOCK, out.dtype)
    tops = np.empty(BLOCK, out.dtype)
    for low in range(start, stop, BLOCK):
        part = slice(low, min(low + BLOCK, stop))
        entries, size = gradient[part], min(BLOCK, stop - low)
        first, second, top = means[:size], squares[:size], tops[:size]
        _push(entries, mean[part], first, beta1, rest1, False)
        _push(entries, square[part], second, beta2, rest2, True)
        _copy(first, out_mean[part])
        _copy(second, out_square[part])
        for i in range(size):
            top[i] = first[i] * unbias1 if is_of_mean else entries[i]
        _direct(top, first, second, out[part], unbias1, unbias2, own, others, epsilon, scale)
