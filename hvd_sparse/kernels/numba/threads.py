"""Threads that share the work on one vector."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

ENTRIES_PER_THREAD = 1 << 17
"""Entries that are worth another thread."""

LINE = 64
"""Entries to whose multiples the parts of threads are rounded: whole cache
lines, counted from the vector's first entry."""

Result = TypeVar("Result")


class Threads:
    """A pool of threads, each of which takes a part of a vector; the caller's is one of them.

    Parameters
    ----------
    count : how many there are; vectors too short for that many get fewer
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = ThreadPoolExecutor(count - 1, "hvd_sparse") if count > 1 else None

    def is_shared(self, numel: int) -> bool:
        """Tell whether a vector of so many entries is worth more than one thread."""
        return self._pool is not None and numel >= 2 * ENTRIES_PER_THREAD

    def spread(self, numel: int, work: Callable[[int, int], Result]) -> list[Result]:
        """Run the work on the parts of a vector, and return the results in order."""
        if self._pool is None or not self.is_shared(numel):
            return [work(0, numel)]
        parts = min(self.count, numel // ENTRIES_PER_THREAD)
        # Parts begin at whole lines, so that no two threads write to one.
        bounds = [*(numel * i // parts // LINE * LINE for i in range(parts)), numel]
        others = [self._pool.submit(work, *pair) for pair in pairwise(bounds[1:])]
        return [work(bounds[0], bounds[1]), *(other.result() for other in others)]
