"""Engine ``numba``: the kernels of ``kernels.contract``, compiled, for one or several threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate, pairwise
from typing import TypeVar

import numpy as np

from hvd_sparse.kernels.arrays import keeps_subnormals
from hvd_sparse.kernels.contract import Aim, Kernels, Moments, Taking
from hvd_sparse.kernels.numba import fused, lists, scans
from hvd_sparse.kernels.numba.packing import CompiledPackers
from hvd_sparse.kernels.numba.rows import CompiledRows
from hvd_sparse.kernels.numba.vectors import SPARE
from hvd_sparse.kernels.optimizers import Direction, Momentum, operands
from hvd_sparse.types import Selection

CANDIDATES = 8
"""To find the largest entries, a list of entries is trimmed if it has at most this many times the
wanted number, or at most a 64th of the vector's entries. Otherwise the vector is searched."""

ENTRIES_PER_THREAD = 1 << 17
"""A vector is divided among threads only as far as each thread has at least this many entries."""

SHARED = 2 * ENTRIES_PER_THREAD
"""Smallest vector that several threads work on, in entries."""

LINE = 64
"""Each thread's first index is a multiple of this, so no two threads write to one cache line."""

SHORT = 1 << 15
"""Number of entries of the largest vector for which ``take_largest`` uses no sample."""

SAMPLE = 1 << 13
"""Number of entries in the sample by which ``take_largest`` estimates a threshold."""

Result = TypeVar("Result")


class CompiledKernels(CompiledPackers, CompiledRows, Kernels):
    """Compiled kernels. Most read a vector once, at the speed of the memory, without Python's
    global interpreter lock. ``threads`` threads work on each long vector, and fewer on shorter
    vectors."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "hvd_sparse") if threads > 1 else None
        self.most_in_row = math.inf if threads == 1 else SHARED - 1

    def _spread(self, numel: int, work: Callable[[int, int], Result]) -> list[Result]:
        """Divide a vector of ``numel`` entries among threads. Each calls ``work``, a function of
        the start and stop of its part of the entries. Return the results in the order of the
        parts."""
        if self._pool is None or numel < SHARED:
            return [work(0, numel)]
        parts = min(self.threads, numel // ENTRIES_PER_THREAD)
        bounds = [*(numel * i // parts // LINE * LINE for i in range(parts)), numel]
        others = [self._pool.submit(work, *pair) for pair in pairwise(bounds[1:])]
        return [work(bounds[0], bounds[1]), *(other.result() for other in others)]

    def moments(self, x: np.ndarray) -> Moments:
        return self._totals(x.size, partial(scans.look, x))

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        return self._totals(out.size, partial(scans.add_and_look, gradient, residual, out))

    def accumulate_and_take(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        aim: Aim,
        direction: Direction | None = None,
    ) -> Taking:
        given = _flat(direction, out.dtype)

        def take(start: int, stop: int) -> tuple[int, int, Selection]:
            # All entries may be in one part, so each thread's list has room for the whole capacity.
            indices, values = _room(min(aim.capacity, stop - start) + SPARE, out)
            nonfinite = np.zeros(1, np.intp)
            count = fused.add_and_take(
                gradient, residual, out, given, start, stop, aim.threshold, indices, values,
                aim.capacity, nonfinite,
            )  # fmt: skip
            listed = max(0, count)
            return int(nonfinite[0]), count, Selection(indices[:listed], values[:listed], out.size)

        if self._pool is None or out.size < SHARED:  # faster than the general case below
            nonfinite, count, taken = take(0, out.size)
            return Taking(nonfinite, taken if count >= 0 else None)
        parts = self._spread(out.size, take)
        taken = joined([taken for _, _, taken in parts])
        is_too_much = any(count < 0 for _, count, _ in parts) or taken.count > aim.capacity
        if is_too_much:  # write back the entries of the parts that stayed within the capacity
            out[taken.indices] = taken.values
        nonfinite = sum(bad for bad, _, _ in parts)
        return Taking(nonfinite, None if is_too_much else taken)

    def directed(self, gradient: np.ndarray, direction: Direction) -> np.ndarray:
        if isinstance(direction, Momentum) and not direction.is_nesterov:
            out = direction.out_velocity
        else:
            out = np.empty_like(gradient)
        given = _flat(direction, out.dtype)
        self._spread(out.size, partial(fused.direct, gradient, out, given))
        return out

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        return joined([taken for _, taken in self._take(x, threshold, x.size)])

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        parts = self._take(x, threshold, capacity)
        count = sum(count for count, _ in parts)
        return count, joined([taken for _, taken in parts]) if count <= capacity else None

    def _take(self, x: np.ndarray, threshold: float, capacity: int) -> list[tuple[int, Selection]]:
        least = float(np.finfo(x.dtype).smallest_normal)
        if threshold < least and not keeps_subnormals():
            threshold = least  # the scan compares bit patterns, and would take subnormal numbers

        def take(start: int, stop: int) -> tuple[int, Selection]:
            # Long lists cost little, because the system allocates only the pages that are written.
            indices, values = _room(min(capacity, stop - start) + SPARE, x)
            count = scans.take(x, start, stop, threshold, indices, values, capacity)
            kept = count if count <= capacity else 0
            return count, Selection(indices[:kept].copy(), values[:kept].copy(), x.size)

        return self._spread(x.size, take)

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        if count <= 0:
            return Selection.empty(x.size, x.dtype)
        if x.size > SHORT:
            # Usually enough entries, but not many more, reach a threshold that a sample suggests.
            threshold = _likely(x, count)
            found, taken = self.count_and_take(x, threshold, _few(count, x.size))
            # With threshold 0, all non-zeros were taken, however few they are.
            if taken is not None and (found >= count or threshold == 0):
                return self.trim(taken, count, None)[0]
        return self.trim(Selection(np.arange(x.size, dtype=np.uint32), x, x.size), count, None)[0]

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        count, taken = self.count_and_take(x, threshold, _few(most, x.size))
        if taken is None:
            return count, self.take_largest(x, most)
        return count, self.trim(taken, most, None)[0] if count > most else taken

    def trim(self, taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
        room = min(count, taken.indices.size) + 1
        indices, values = np.empty(room, np.uint32), np.empty(room, taken.values.dtype)
        where = values if out is None else out  # the compiled signature does not allow None
        found, threshold = lists.trim(
            taken.indices, taken.values, count, indices, values, where, out is not None
        )
        return Selection(indices[:found], values[:found], taken.numel), threshold

    def assemble(self, out: np.ndarray, parts: Sequence[Selection], factor: float = 1.0) -> None:
        # Concatenate even a single list, because a view of a message may be unaligned.
        indices, values = _room(0, out)
        if parts:
            indices = np.concatenate([part.indices for part in parts])
            values = np.concatenate([part.values for part in parts])
        ends = np.array(list(accumulate(part.indices.size for part in parts)), np.intp)
        lists.assemble(out, indices, values, ends, float(factor))

    def _totals(self, numel: int, work: Callable[[int, int, np.ndarray], None]) -> Moments:
        def part(start: int, stop: int) -> np.ndarray:
            totals = np.zeros(3)
            work(start, stop, totals)
            return totals

        totals = self._spread(numel, part)
        abs_sum = float(sum(part[0] for part in totals))
        # The compiled maximum ignores NaN, but the sum becomes NaN.
        abs_max = float("nan") if np.isnan(abs_sum) else float(max(part[1] for part in totals))
        return Moments(abs_sum, abs_max, int(sum(part[2] for part in totals)), numel)


def _flat(direction: Direction | None, dtype: np.dtype) -> tuple[object, ...]:
    vectors, numbers = operands(direction, dtype)
    return *vectors, *numbers


def _few(most: int, numel: int) -> int:
    return min(numel, max(CANDIDATES * most, numel // CANDIDATES**2))


def _likely(x: np.ndarray, count: int) -> float:
    """Return a threshold that ``count`` or slightly more entries very likely reach."""
    # A strided sample is about as good as a random one here, and gives the same result every time.
    sample = np.abs(x[:: x.size // SAMPLE])
    # The standard deviation of a rank in a sample is about its square root.
    rank = sample.size * count / x.size
    place = sample.size - 1 - int(rank + 4 * math.sqrt(rank) + 2)
    return float(np.partition(sample, place)[place]) if place > 0 else 0.0


def joined(parts: Sequence[Selection]) -> Selection:
    if len(parts) == 1:
        return parts[0]
    indices = np.concatenate([part.indices for part in parts])
    return Selection(indices, np.concatenate([part.values for part in parts]), parts[0].numel)


def _room(count: int, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(count, np.uint32), np.empty(count, like.dtype)
