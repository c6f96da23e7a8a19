"""A step's passes that take entries, as methods over the compiled loops of ``fused``."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hvd_sparse.kernels.adam import AdamStep
from hvd_sparse.kernels.contract import Aim, Taking
from hvd_sparse.kernels.numba import directions, fused, lists
from hvd_sparse.kernels.numba.segments import SPARE
from hvd_sparse.kernels.numba.threads import Threads
from hvd_sparse.types import Selection

_BITS = {
    np.dtype(np.float32): (struct.Struct("=f"), struct.Struct("=i")),
    np.dtype(np.float64): (struct.Struct("=d"), struct.Struct("=q")),
}
"""What rounds a number to a dtype, and what reads its bits as an integer: several times as fast as
an array's scalars."""


class CompiledPasses:
    """Compiled passes that move a memory's vectors on by a gradient.

    Parameters
    ----------
    threads : how many work on one vector; vectors too short for that many get fewer
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._threads = Threads(threads)
        self._spread = self._threads.spread

    def accumulate_and_take(
        self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
    ) -> Taking:
        return self._taken(partial(fused.add_and_take, gradient, residual, out), out, aim)

    def push_momentum_and_take(
        self,
        gradient: np.ndarray,
        velocity: np.ndarray,
        out_velocity: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        momentum: float,
        nesterov: bool,
        aim: Aim,
    ) -> Taking:
        vectors = gradient, residual, out, velocity, out_velocity
        loop = partial(fused.push_and_take, *vectors, out.dtype.type(momentum), nesterov)
        return self._taken(loop, out, aim)

    def push_adam_and_take(
        self,
        gradient: np.ndarray,
        mean: np.ndarray,
        square: np.ndarray,
        out_mean: np.ndarray,
        out_square: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        step: AdamStep,
        aim: Aim,
    ) -> Taking:
        vectors = gradient, residual, out, mean, square, out_mean, out_square
        numbers = step.factors(out.dtype)
        loop = partial(fused.push_adam_and_take, *vectors, *numbers, step.is_of_mean)
        return self._taken(loop, out, aim)

    def _taken(self, loop: Callable[..., int], out: np.ndarray, aim: Aim) -> Taking:
        """Return what a loop of ``fused`` takes, given all of its arguments from ``start`` on."""
        cut, numel = pattern_at(aim.threshold, out.dtype), out.size
        if self.threads > 1 and self._threads.is_shared(numel):
            return self._taken_by_threads(loop, cut, out, aim)
        room, totals = min(aim.capacity, numel) + SPARE, np.zeros(2)
        indices, values = np.empty(room, np.uint32), np.empty(room, out.dtype)
        count = loop(0, numel, cut, indices, values, aim.capacity, totals)
        taken = Selection(indices[:count], values[:count], numel) if count >= 0 else None
        abs_sum, nonfinite = totals.tolist()
        return Taking(abs_sum, int(nonfinite), taken)

    def _taken_by_threads(
        self, loop: Callable[..., int], cut: int, out: np.ndarray, aim: Aim
    ) -> Taking:
        """Return the same of a vector that threads share."""

        def take(start: int, stop: int) -> tuple[np.ndarray, int, Selection]:
            # Every thread has room for the whole capacity: how many its part has nobody knows.
            room, totals = min(aim.capacity, stop - start) + SPARE, np.zeros(2)
            indices, values = np.empty(room, np.uint32), np.empty(room, out.dtype)
            count = loop(start, stop, cut, indices, values, aim.capacity, totals)
            listed = max(0, count)
            return totals, count, Selection(indices[:listed], values[:listed], out.size)

        parts = self._spread(out.size, take)
        taken = joined([taken for _, _, taken in parts])
        is_too_much = any(count < 0 for _, count, _ in parts) or taken.count > aim.capacity
        if is_too_much:  # parts that stayed within the capacity have cleared their entries in out
            lists.restore(out, taken.indices, taken.values)
        abs_sum, nonfinite = np.sum([totals for totals, _, _ in parts], axis=0)
        return Taking(float(abs_sum), int(nonfinite), None if is_too_much else taken)

    def push_momentum(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        momentum: float,
    ) -> None:
        factor = out.dtype.type(momentum)
        self._spread(out.size, partial(directions.push, gradient, residual, out, factor))

    def push_adam(
        self,
        gradient: np.ndarray,
        mean: np.ndarray,
        square: np.ndarray,
        out_mean: np.ndarray,
        out_square: np.ndarray,
        out: np.ndarray,
        step: AdamStep,
    ) -> None:
        vectors = gradient, mean, square, out_mean, out_square, out
        loop = partial(directions.push_adam, *vectors, *step.factors(out.dtype), step.is_of_mean)
        self._spread(out.size, loop)


def pattern_at(threshold: float, dtype: np.dtype, least: int = 1) -> int:
    """Return the bit pattern of the threshold in the data's dtype, but at least ``least``.

    Parameters
    ----------
    threshold : 0 or more
    dtype : float32 or float64
    least : 1 is the smallest number above zero: no threshold may lie below it where zeros are never
        taken
    """
    rounded, bits = _BITS[dtype]
    try:
        (pattern,) = bits.unpack(rounded.pack(threshold))
    except OverflowError:  # too large for the type: infinite
        (pattern,) = bits.unpack(rounded.pack(math.inf))
    return pattern if pattern > least else least


def joined(parts: Sequence[Selection]) -> Selection:
    """Join the selections of a vector's parts."""
    if len(parts) == 1:
        return parts[0]
    indices, values = [], []
    for part in parts:
        indices.append(part.indices)
        values.append(part.values)
    return Selection(np.concatenate(indices), np.concatenate(values), parts[0].numel)
