"""Kernels compiled by numba, for one or several threads.  Contracts: ``core.kernels.contract``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

import numpy as np

from hvd_sparse.core.kernels import reference
from hvd_sparse.core.kernels.contract import Aim, Moments, Taking
from hvd_sparse.core.kernels.numba import assembly, lists, sweeps
from hvd_sparse.core.kernels.numba._packers import CompiledPackers
from hvd_sparse.types import Selection

ENTRIES_PER_THREAD = 1 << 17
"""Entries that are worth another thread."""

LINE = 64
"""Entries to whose multiples the parts of threads are rounded: whole cache
lines, counted from the vector's first entry."""

LARGEST = float(np.finfo(np.float32).max)

SHORT = 1 << 15
"""Entries of a vector that is copied and put in order faster than it is counted."""

SAMPLE = 1 << 13
"""Entries of the sample that tells about where the wanted magnitude lies."""

CANDIDATES = 8
"""Entries over those wanted that are worth a list to be cut."""

PATTERNS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
"""Integer types of the bit patterns, which are ordered as the magnitudes are."""


Result = TypeVar("Result")


class CompiledKernels(CompiledPackers):
    """Compiled kernels: one pass each, bound by memory; the global interpreter lock is free
    meanwhile.

    Parameters
    ----------
    threads : how many work on one vector; vectors too short for that many get fewer
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "hvd_sparse") if threads > 1 else None

    # Kernels that few selectors ask for are left to numpy.
    mean_and_std = staticmethod(reference.mean_and_std)
    tail = staticmethod(reference.tail)
    digit_counts = staticmethod(reference.digit_counts)
    chunk_norms = staticmethod(reference.chunk_norms)
    sample_magnitudes = staticmethod(reference.sample_magnitudes)
    take_indices = staticmethod(reference.take_indices)
    take_bins = staticmethod(reference.take_bins)
    compensate = staticmethod(reference.compensate)
    push_momentum = staticmethod(reference.push_momentum)

    def moments(self, x: np.ndarray) -> Moments:
        return self._totals(x.size, lambda start, stop, totals: sweeps.look(x, start, stop, totals))

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        def add(start: int, stop: int, totals: np.ndarray) -> None:
            sweeps.add_and_look(gradient, residual, out, start, stop, totals)

        return self._totals(out.size, add)

    def count_at_least(self, x: np.ndarray, threshold: float) -> int:
        cut = _pattern(threshold, x.dtype, 0)
        return sum(
            self._spread(x.size, lambda start, stop: sweeps.count_at_least(x, start, stop, cut))
        )

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        cut = _pattern(threshold, x.dtype)
        if cut < _pattern(float(np.finfo(x.dtype).smallest_normal), x.dtype):
            return reference.take_at_least(
                x, threshold
            )  # some threads take smaller numbers for zero
        return _joined([taken for _, taken in self._take(x, cut, x.size)])

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        parts = self._take(x, _pattern(threshold, x.dtype), capacity)
        count = sum(count for count, _ in parts)
        return count, _joined([taken for _, taken in parts]) if count <= capacity else None

    def _take(self, x: np.ndarray, cut: int, capacity: int) -> list[tuple[int, Selection]]:
        """Return the count of each part of the vector, and its entries unless they exceed the
        capacity."""

        def take(start: int, stop: int) -> tuple[int, Selection]:
            indices, values = _room(
                min(capacity, stop - start) + sweeps.SPARE, x
            )  # untouched, it costs no memory
            count = sweeps.take(x, start, stop, cut, indices, values, capacity)
            kept = count if count <= capacity else 0
            return count, Selection(indices[:kept].copy(), values[:kept].copy(), x.size)

        return self._spread(x.size, take)

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        if count <= 0:
            return Selection.empty(x.size, x.dtype)
        if x.size > SHORT:
            return self._largest_of_many(x, min(count, x.size))
        indices, values = _room(min(count, x.size) + 1, x)
        found = lists.take_largest(x, count, indices, values)
        return Selection(indices[:found], values[:found], x.size)

    def _largest_of_many(self, x: np.ndarray, count: int) -> Selection:
        """Return the largest entries of a vector that is not to be copied, however many are equal.

        The count-th magnitude's bit pattern is searched. The first pass tries the pattern that a
        sample has there, which settles most vectors, those of a few values too. Every other pass
        divides by eight the range that the pattern lies in, so that there are at most 12 passes of
        float32 and 22 of float64, whatever the data.
        """
        low, above, few = (
            1,
            int(np.array(np.inf, x.dtype).view(PATTERNS[x.dtype])) + 1,
            4 * count + SHORT,
        )
        cuts = _likely_cuts(x, count)
        while above > low + 1:
            reached = np.sum(self._spread(x.size, partial(_counted, x, cuts)), axis=0)
            enough = int(np.count_nonzero(reached >= count))  # of the cuts, which ascend
            if enough:
                low = int(cuts[enough - 1])
                if reached[enough - 1] <= few:
                    taken = _joined(
                        [part for _, part in self._take(x, low, int(reached[enough - 1]))]
                    )
                    return self.trim(taken, count, None)[0]
            above = int(cuts[enough]) if enough < cuts.size else above
            cuts = low + (above - low) * np.arange(1, sweeps.CUTS + 1) // (sweeps.CUTS + 1)
            cuts = np.maximum(cuts, low + 1)  # near the end several are the same
        # The pattern is found: take all that is larger, then the first of those equal to it.
        larger = _joined([part for _, part in self._take(x, above, count)])
        indices, values = _room(count - larger.count if low < above else 0, x)
        found = sweeps.take_first(x, low, indices.size, indices, values)
        both = _joined([larger, Selection(indices[:found], values[:found], x.size)])
        # Indices of the two lists interleave: larger entries and the first of the equal ones.
        order = np.argsort(both.indices, kind="stable")
        return Selection(both.indices[order], both.values[order], x.size)

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        few = min(x.size, max(CANDIDATES * most, x.size // CANDIDATES**2))
        count, taken = self.count_and_take(x, threshold, few)
        if taken is None:
            return count, self.take_largest(x, most)
        return count, self.trim(taken, most, None)[0] if count > most else taken

    def accumulate_and_take(
        self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
    ) -> Taking:
        cut = _pattern(aim.threshold, out.dtype)

        def add(start: int, stop: int) -> tuple[np.ndarray, int, Selection]:
            # Every thread has room for the whole capacity: how many its part has nobody knows.
            room, totals = min(aim.capacity, stop - start) + sweeps.SPARE, np.zeros(2)
            indices, values = np.empty(room, np.uint32), np.empty(room, out.dtype)
            count = sweeps.add_and_take(
                gradient, residual, out, start, stop, cut, indices, values, aim.capacity, totals
            )
            listed = max(0, count)
            return totals, count, Selection(indices[:listed], values[:listed], out.size)

        if self._pool is None or not self._parts(out.size):
            totals, count, taken = add(0, out.size)
            return Taking(float(totals[0]), int(totals[1]), taken if count >= 0 else None)
        parts = self._spread(out.size, add)
        taken = _joined([part for _, _, part in parts])
        is_too_much = any(count < 0 for _, count, _ in parts) or taken.count > aim.capacity
        if is_too_much:  # parts that stayed within the capacity have cleared their entries in out
            self.restore(out, taken)
        abs_sum, nonfinite = np.sum([totals for totals, _, _ in parts], axis=0)
        return Taking(float(abs_sum), int(nonfinite), None if is_too_much else taken)

    def trim(self, taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
        room = min(count, taken.indices.size) + 1
        indices, values = np.empty(room, np.uint32), np.empty(room, taken.values.dtype)
        where = values if out is None else out  # compiled code takes no None
        found, threshold = lists.trim(
            taken.indices, taken.values, count, indices, values, where, out is not None
        )
        return Selection(indices[:found], values[:found], taken.numel), threshold

    def restore(self, out: np.ndarray, selection: Selection) -> None:
        lists.restore(out, selection.indices, selection.values)

    def clear(self, residual: np.ndarray, indices: np.ndarray) -> None:
        lists.clear(residual, indices)

    def assemble(self, out: np.ndarray, parts: Sequence[Selection], factor: float = 1.0) -> None:
        # Joined even where there is one: lists out of a message need not be aligned.
        lists_of_indices, lists_of_values, ends, end = [], [], [], 0
        for part in parts:
            lists_of_indices.append(part.indices)
            lists_of_values.append(part.values)
            end += part.indices.size
            ends.append(end)
        if parts:
            indices, values = np.concatenate(lists_of_indices), np.concatenate(lists_of_values)
            if factor != 1.0:
                values *= out.dtype.type(factor)
        else:
            indices, values = _room(0, out)
        assembly.assemble(out, indices, values, np.array(ends, np.intp))

    def scatter_add(self, out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
        lists.scatter_add(
            out, np.require(indices, requirements="A"), np.require(values, requirements="A")
        )

    def _totals(self, numel: int, work: Callable[[int, int, np.ndarray], None]) -> Moments:
        """Return the moments of a vector, from the totals of its parts."""

        def part(start: int, stop: int) -> np.ndarray:
            totals = np.zeros(3)
            work(start, stop, totals)
            return totals

        totals = self._spread(numel, part)
        abs_sum = float(sum(part[0] for part in totals))
        # The compiled maximum overlooks NaN, which the sum does not.
        abs_max = float("nan") if np.isnan(abs_sum) else float(max(part[1] for part in totals))
        return Moments(abs_sum, abs_max, int(sum(part[2] for part in totals)), numel)

    def _parts(self, numel: int) -> int:
        """Return how many threads share a vector; 0 if this one suffices."""
        parts = min(self.threads, numel // ENTRIES_PER_THREAD)
        return parts if parts > 1 else 0

    def _spread(self, numel: int, work: Callable[[int, int], Result]) -> list[Result]:
        """Run the work on the parts of a vector, and return the results in order."""
        parts = self._parts(numel)
        if self._pool is None or not parts:
            return [work(0, numel)]
        # Parts begin at whole lines, so that no two threads write to one.
        bounds = [*(numel * i // parts // LINE * LINE for i in range(parts)), numel]
        others = [self._pool.submit(work, *pair) for pair in pairwise(bounds[1:])]
        return [work(bounds[0], bounds[1]), *(other.result() for other in others)]


def _pattern(threshold: float, dtype: np.dtype, least: int = 1) -> int:
    """Return the bit pattern of the threshold in the data's dtype, but at least ``least``.

    Parameters
    ----------
    threshold : 0 or more
    dtype : float32 or float64
    least : 1 is the smallest number above zero: no threshold may lie below it where zeros are never
        taken
    """
    if dtype == np.float64 or threshold < LARGEST:
        rounded = dtype.type(threshold)
    else:
        with np.errstate(over="ignore"):  # too large for the type: infinite
            rounded = dtype.type(threshold)
    return max(least, int(rounded.view(PATTERNS[dtype])))


def _likely_cuts(x: np.ndarray, count: int) -> np.ndarray:
    """Return ascending bit patterns around that of the count-th largest magnitude of a sample.

    Each pattern comes with the next higher one, so that a value that many entries share is found at
    once.
    """
    # Strided: about as good as drawn at random for this, and the same on every run.
    sample = np.abs(x[:: max(1, x.size // SAMPLE)])
    patterns = np.sort(
        np.where(np.isnan(sample), 0, sample).view(PATTERNS[x.dtype]).astype(np.intp)
    )[::-1]
    rank = sample.size * count / x.size
    # The rank in a sample scatters by its square root: the cuts stand on both sides of it.
    margin = 4 * np.sqrt(rank) + 2
    ranks = np.clip(np.array([rank + margin, rank, rank - margin], np.intp), 0, sample.size - 1)
    cuts = np.concatenate([[1], *([pattern, pattern + 1] for pattern in patterns[ranks])])
    return np.sort(np.clip(cuts, 1, int(np.array(np.inf, x.dtype).view(PATTERNS[x.dtype]))))


def _counted(x: np.ndarray, cuts: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return how many entries of a part reach each cut."""
    counts = np.zeros(sweeps.CUTS, np.intp)
    sweeps.count_each(x, start, stop, cuts, counts)
    return counts


def _room(count: int, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return uninitialised lists of indices and values."""
    return np.empty(count, np.uint32), np.empty(count, like.dtype)


def _joined(parts: Sequence[Selection]) -> Selection:
    """Join the selections of a vector's parts."""
    if len(parts) == 1:
        return parts[0]
    indices, values = [], []
    for part in parts:
        indices.append(part.indices)
        values.append(part.values)
    return Selection(np.concatenate(indices), np.concatenate(values), parts[0].numel)
