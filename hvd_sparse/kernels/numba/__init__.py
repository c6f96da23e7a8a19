"""Kernels compiled by numba, for one or several threads.  Contracts: ``kernels.contract``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Moments, Sums, Surplus
from hvd_sparse.kernels.numba import assembly, copies, counts, lists, moments
from hvd_sparse.kernels.numba._passes import CompiledPasses, joined, pattern_at
from hvd_sparse.kernels.numba.largest import SHORT, search
from hvd_sparse.kernels.numba.packers import CompiledPackers
from hvd_sparse.kernels.numba.rows import CompiledRows
from hvd_sparse.kernels.numba.segments import SPARE
from hvd_sparse.types import Selection

CANDIDATES = 8
"""Entries over those wanted that are worth a list to be cut."""


class CompiledKernels(CompiledPasses, CompiledPackers, CompiledRows):
    """Compiled kernels: one pass each, bound by memory; the global interpreter lock is free
    meanwhile.

    Parameters
    ----------
    threads : how many work on one vector; vectors too short for that many get fewer
    """

    # Kernels that few selectors ask for are left to numpy, and products of matrices to its BLAS.
    orthogonalized = staticmethod(reference.orthogonalized)
    mean_and_std = staticmethod(reference.mean_and_std)
    tail = staticmethod(reference.tail)
    digit_counts = staticmethod(reference.digit_counts)
    chunk_norms = staticmethod(reference.chunk_norms)
    sample_magnitudes = staticmethod(reference.sample_magnitudes)
    take_indices = staticmethod(reference.take_indices)
    take_bins = staticmethod(reference.take_bins)

    def moments(self, x: np.ndarray) -> Moments:
        return self._totals(x.size, partial(moments.look, x))

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        def add(start: int, stop: int, totals: np.ndarray) -> None:
            moments.add_and_look(gradient, residual, out, start, stop, totals)

        return self._totals(out.size, add)

    def count_at_least(self, x: np.ndarray, threshold: float) -> int:
        cut = pattern_at(threshold, x.dtype, 0)
        parts = self._spread(
            x.size, lambda start, stop: int(counts.count_at_least(x, start, stop, cut))
        )
        return sum(parts)

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        cut = pattern_at(threshold, x.dtype)
        if cut < pattern_at(float(np.finfo(x.dtype).smallest_normal), x.dtype):
            # Some threads take smaller numbers for zero.
            return reference.take_at_least(x, threshold)
        return joined([taken for _, taken in self._take(x, cut, x.size)])

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        parts = self._take(x, pattern_at(threshold, x.dtype), capacity)
        count = sum(count for count, _ in parts)
        return count, joined([taken for _, taken in parts]) if count <= capacity else None

    def _take(self, x: np.ndarray, cut: int, capacity: int) -> list[tuple[int, Selection]]:
        """Return the count of each part of the vector, and its entries unless they exceed the
        capacity."""

        def take(start: int, stop: int) -> tuple[int, Selection]:
            # Room that is not touched costs no memory.
            indices, values = _room(min(capacity, stop - start) + SPARE, x)
            count = copies.take(x, start, stop, cut, indices, values, capacity)
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
        """Return the largest entries of a vector that is too long to be copied."""

        def reached(cuts: np.ndarray) -> np.ndarray:
            parts = self._spread(x.size, partial(_counts_of_part, x, cuts))
            return np.asarray(np.sum(parts, axis=0))

        pattern, above, candidates = search(x, count, reached)
        if candidates is not None:
            taken = joined([part for _, part in self._take(x, pattern, candidates)])
            return self.trim(taken, count, None)[0]
        # All that is larger, and then the first of those that are equal to the count-th.
        larger = joined([part for _, part in self._take(x, above, count)])
        indices, values = _room(count - larger.count if pattern < above else 0, x)
        found = copies.take_first(x, pattern, indices.size, indices, values)
        both = joined([larger, Selection(indices[:found], values[:found], x.size)])
        # Indices of the two lists interleave: larger entries and the first of the equal ones.
        order = np.argsort(both.indices, kind="stable")
        return Selection(both.indices[order], both.values[order], x.size)

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        few = min(x.size, max(CANDIDATES * most, x.size // CANDIDATES**2))
        count, taken = self.count_and_take(x, threshold, few)
        if taken is None:
            return count, self.take_largest(x, most)
        return count, self.trim(taken, most, None)[0] if count > most else taken

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
        else:
            indices, values = _room(0, out)
        assembly.assemble(out, indices, values, np.array(ends, np.intp), float(factor))

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        for out, parts, factor in sums:
            self.assemble(out, parts, factor)
        for vector, selection in surplus:
            self.restore(vector, selection)

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


def _counts_of_part(x: np.ndarray, cuts: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Return how many entries of a part reach each cut."""
    found = np.zeros(cuts.size, np.intp)
    counts.count_each(x, start, stop, cuts, found)
    return found


def _room(count: int, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return uninitialised lists of indices and values."""
    return np.empty(count, np.uint32), np.empty(count, like.dtype)
