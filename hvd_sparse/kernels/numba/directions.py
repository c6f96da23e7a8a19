"""Compiled directions of optimizers: momentum and Adam, in one pass.

Every operation is rounded as in numpy, so loops must not fuse or reorder operations.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from hvd_sparse.kernels.numba.vectors import signatures

BLOCK = 1 << 11
"""Entries that stay in the first-level cache from one loop to the next."""


@njit
def _moving(old, entry, factor, rest):  # type: ignore[no-untyped-def]
    return old * factor + entry * rest


# numpy's division by zero gives infinity; a check for zero would prevent vectorization.
@njit(error_model="numpy")
def _adam_entry(top, first, second, own, others, epsilon, scale):  # type: ignore[no-untyped-def]
    """Return the direction: ``top`` divided by the root of the bias-corrected second moment."""
    both = first * first
    average = second * own + (both if both < second else second) * others
    # Infinity times 0 gives NaN, because the division by an infinite square would hide the
    # overflow.
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
    # Use a buffer, because LLVM does not vectorize a loop in which ``out`` may be ``residual``.
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
    """Do ``Kernels.push_adam`` in [start, stop)."""
    # Use several short loops over buffers, because LLVM does not vectorize a loop over six vectors
    # that may overlap.
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
