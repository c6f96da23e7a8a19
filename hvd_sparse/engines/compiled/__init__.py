"""The kernels compiled by numba, for one or several threads.  Contracts: ``core.kernels``."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Callable

import numpy as np

from ...core import reference
from ...core.kernels import Aim, Moments, Taking
from ...types import Selection
from . import lists, sweeps

ENTRIES_PER_THREAD = 1 << 17
"""Fewer are not worth handing to another thread."""


class CompiledKernels:
    """One pass each, bound by memory; the global interpreter lock is free while they run.

    threads : how many work on one vector; vectors too short for that many get fewer
    """

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._pool = ThreadPoolExecutor(threads - 1, "hvd_sparse") if threads > 1 else None

    # What is not on the way of every gradient is left to numpy.
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
        cut = _rounded(threshold, x)
        return sum(self._spread(x.size, lambda start, stop: sweeps.count_at_least(x, start, stop, cut)))

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        cut = max(_rounded(threshold, x), np.finfo(x.dtype).smallest_subnormal)  # zeros are never taken

        def take(start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
            indices, values = _room(stop - start, x)  # untouched, it costs no memory
            count = sweeps.take(x, start, stop, cut, indices, values)
            return indices[:count].copy(), values[:count].copy()

        indices, values = zip(*self._spread(x.size, take))
        return Selection(_joined(indices), _joined(values), x.size)

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        threshold, ties = self.cut_largest(x, count)
        return self.keep(self.take_at_least(x, threshold), threshold, ties, None)

    def accumulate_and_take(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim) -> Taking:
        cut = _rounded(aim.threshold, out)

        def add(start: int, stop: int) -> tuple[np.ndarray, int, np.ndarray, np.ndarray]:
            indices, values = _room(min(aim.capacity, stop - start) + sweeps.SEGMENT, out)
            totals = np.zeros(2)
            count = sweeps.add_and_take(
                gradient, residual, out, start, stop, cut, indices, values, aim.capacity, totals
            )
            return totals, count, indices[: max(0, count)], values[: max(0, count)]

        totals, counts, indices, values = zip(*self._spread(out.size, add))
        taken = Selection(_joined(indices), _joined(values), out.size)
        is_too_much = min(counts) < 0 or taken.count > aim.capacity
        if is_too_much:
            self.restore(out, taken)
        abs_sum, nonfinite = (float(sum(part[i] for part in totals)) for i in (0, 1))
        return Taking(abs_sum, int(nonfinite), None if is_too_much else taken)

    def cut_largest(self, x: np.ndarray, count: int) -> tuple[float, int]:
        if count <= 0:
            return np.inf, 0
        magnitudes = np.fmax(np.abs(x), x.dtype.type(0))  # fmax turns NaN into 0: it is never taken
        key, ties = lists.cut_keys(magnitudes.view(f"i{x.itemsize}"), count)
        return float(np.array([key], f"i{x.itemsize}").view(x.dtype)[0]), ties

    def keep(self, taken: Selection, threshold: float, ties: int, out: np.ndarray | None) -> Selection:
        cut = _rounded(threshold, taken.values)
        indices, values = _room(taken.count + 1, taken.values)
        count = lists.keep(taken.indices, taken.values, cut, ties, indices, values)
        if out is not None:
            lists.give_back(taken.indices, taken.values, cut, ties, out, np.empty(taken.count + 1, np.uint32))
        return Selection(indices[:count], values[:count], taken.numel)

    def restore(self, out: np.ndarray, selection: Selection) -> None:
        lists.restore(out, selection.indices, selection.values)

    def clear(self, residual: np.ndarray, indices: np.ndarray) -> None:
        lists.clear(residual, indices)

    def scatter_add(self, out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
        lists.scatter_add(out, np.require(indices, requirements="A"), np.require(values, requirements="A"))

    def _totals(self, numel: int, work: Callable[[int, int, np.ndarray], None]) -> Moments:
        def part(start: int, stop: int) -> np.ndarray:
            totals = np.zeros(3)
            work(start, stop, totals)
            return totals

        totals = self._spread(numel, part)
        abs_sum = float(sum(part[0] for part in totals))
        # The compiled maximum overlooks NaN, which the sum does not.
        abs_max = float("nan") if np.isnan(abs_sum) else float(max(part[1] for part in totals))
        return Moments(abs_sum, abs_max, int(sum(part[2] for part in totals)), numel)

    def _spread(self, numel: int, work: Callable[[int, int], Any]) -> list[Any]:
        """Results of the parts of a vector, in order."""
        parts = max(1, min(self.threads, numel // ENTRIES_PER_THREAD))
        if self._pool is None or parts == 1:
            return [work(0, numel)]
        bounds = [numel * i // parts for i in range(parts + 1)]
        others = [self._pool.submit(work, *pair) for pair in zip(bounds[1:-1], bounds[2:])]
        return [work(bounds[0], bounds[1]), *(other.result() for other in others)]


def _rounded(threshold: float, x: np.ndarray) -> Any:
    with np.errstate(over="ignore"):
        return x.dtype.type(threshold)


def _room(count: int, like: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.empty(count, np.uint32), np.empty(count, like.dtype)


def _joined(parts: tuple[np.ndarray, ...]) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)
