"""Finding a threshold that a wanted number of entries reach, by counting.

The count is a step function that never rises with the threshold.  A bracket [low, high] with
count(low) > wanted > count(high) shrinks until a count lies in the band or nothing is left between
its ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any, Callable

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.core.kernels.contract import Kernels, Moments
from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import Selection


@dataclass(frozen=True)
class Band:
    """The counts that are good enough: least <= count <= most, aiming at wanted."""

    least: int
    wanted: int
    most: int

    def __contains__(self, count: int) -> bool:
        return self.least <= count <= self.most


@lru_cache(maxsize=4096)  # asked for at every step of a tensor
def band_around(count: int, tolerance: tuple[float, float]) -> Band:
    """tolerance * count, in whole entries that include the count itself."""
    low, high = tolerance
    return Band(
        max(1, math.ceil(low * count - 1e-9)), count, max(count, math.floor(high * count + 1e-9))
    )


@dataclass
class Bracket:
    """Two thresholds and how many entries reach each: too many at ``low``, too few at ``high``."""

    low: float
    high: float
    low_count: int
    high_count: int

    @property
    def width(self) -> float:
        return self.high - self.low

    def narrow(self, threshold: float, count: int, wanted: int) -> None:
        if count > wanted:
            self.low, self.low_count = threshold, count
        else:
            self.high, self.high_count = threshold, count


def bisection(bracket: Bracket, wanted: int) -> float:
    """The middle: the binary search of the paper."""
    return 0.5 * (bracket.low + bracket.high)


def log_count(bracket: Bracket, wanted: int) -> float:
    """Where the logarithm of the count, drawn straight between the ends, meets the wanted one.

    Tails of gradients fall about exponentially, so this line is nearly the curve itself.  The step
    is kept off both ends, so that the bracket always shrinks.
    """
    most, least = math.log(bracket.low_count), math.log(max(bracket.high_count, 0.5))
    fraction = (most - math.log(wanted)) / (most - least) if most > least else 0.5
    return bracket.low + min(0.95, max(0.05, fraction)) * (bracket.high - bracket.low)


CANDIDATES = 16
"""Times k: so many entries, or fewer, are worth taking before the search is over."""

STEPS: dict[str, Callable[[Bracket, int], float]] = {"bisection": bisection, "log_count": log_count}


def check_search(owner: str, search: Any, tolerance: Any, max_passes: Any) -> None:
    """Refuse options that no search could keep."""
    if not isinstance(search, str) or search not in STEPS:
        raise InvalidOption(f"search of {owner} is {search!r}: one of {', '.join(sorted(STEPS))}")
    if not is_tolerance(tolerance):
        raise InvalidOption(
            f"tolerance of {owner} is {tolerance!r}: two numbers (low, high) with 0 < low <= 1 <= "
            "high"
        )
    if isinstance(max_passes, bool) or not isinstance(max_passes, int) or max_passes < 1:
        raise InvalidOption(
            f"max_passes of {owner} is {max_passes!r}: a whole number of at least 1"
        )


def is_tolerance(tolerance: Any) -> bool:
    """Whether these are bounds of a count over k."""
    is_pair = (
        isinstance(tolerance, (tuple, list))
        and len(tolerance) == 2
        and all(map(is_number, tolerance))
    )
    return is_pair and 0 < tolerance[0] <= 1 <= tolerance[1]


@dataclass(frozen=True)
class SearchResult:
    """A threshold, what reaches it, and how it was found.

    Attributes
    ----------
    threshold : its count lies in the band if ``converged``; else it is the bracket's low end, which
        more entries than wanted reach (all non-zeros, where it is 0), so that the top-k are among
        them
    converged : whether a count in the band was found
    passes : counts over the whole vector
    selection : the entries that reach the threshold
    """

    threshold: float
    converged: bool
    passes: int
    selection: Selection


class _Counter:
    """Counts over the whole vector until few enough entries are left, and from then on among these.

    A threshold that too many entries reach, but not far too many, need not be thrown away: whatever
    a higher one leaves is among them.  They are taken once, and the search goes on in a list of a
    few times k.
    """

    def __init__(self, x: np.ndarray, wanted: int, kernels: Kernels | ModuleType) -> None:
        self._x, self._kernels = x, kernels
        self._few = min(CANDIDATES * wanted, max(x.size // 8, 3 * wanted))
        self._candidates: Selection | None = None
        self._last: tuple[float, Selection | None] = (-1.0, None)
        self.passes = 0

    def count(self, threshold: float, most: int) -> int:
        if self._candidates is not None:
            return self._kernels.count_at_least(self._candidates.values, threshold)
        count, taken = self._kernels.count_and_take(self._x, threshold, self._few)
        self.passes += 1
        self._last = threshold, taken
        if count > most:
            self._candidates = taken
        return count

    def take(self, threshold: float) -> Selection:
        if self._candidates is None:
            at, taken = self._last
            return (
                taken
                if at == threshold and taken is not None
                else self._kernels.take_at_least(self._x, threshold)
            )
        kept = self._kernels.take_at_least(self._candidates.values, threshold)
        return Selection(self._candidates.indices[kept.indices], kept.values, self._x.size)


def search_threshold(
    x: np.ndarray,
    first: float,
    band: Band,
    moments: Moments,
    kernels: Kernels | ModuleType,
    search: str,
    max_passes: int,
    known: tuple[float, int] | None = None,
) -> SearchResult:
    """A threshold whose count lies in the band, starting at ``first``, and the entries that reach
    it.

    known : a threshold that was counted before, and its count

    Ends after ``max_passes`` counts, over the vector or over candidates, or as soon as no number of
    x's precision lies strictly inside the bracket (ties, spikes).
    """
    round_to = x.dtype.type
    bracket = Bracket(0.0, float(moments.abs_max), moments.nonzeros, 0)
    if known is not None and known[0] < bracket.high:
        bracket.narrow(*known, band.wanted)
    threshold = float(round_to(min(first, bracket.high)))
    if not threshold > bracket.low:
        threshold = float(round_to(STEPS[search](bracket, band.wanted)))
    counter = _Counter(x, band.wanted, kernels)
    widths = [bracket.width]
    while len(widths) <= max_passes and bracket.low < threshold <= bracket.high:
        count = counter.count(threshold, band.most)
        if count in band:
            return SearchResult(threshold, True, counter.passes, counter.take(threshold))
        bracket.narrow(threshold, count, band.wanted)
        widths.append(bracket.width)
        # Interpolation can creep along one end of a curve that bends the other way: two passes must
        # halve the bracket.
        creeps = len(widths) > 3 and widths[-1] > 0.5 * widths[-3]
        threshold = float(round_to((bisection if creeps else STEPS[search])(bracket, band.wanted)))
        if threshold == bracket.high:  # counted before, or the maximum itself, shared by too many
            break
    return SearchResult(bracket.low, False, counter.passes, counter.take(bracket.low))
