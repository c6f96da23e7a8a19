"""Finding a threshold that a wanted number of entries reach, by counting.

The count is a step function that never rises with the threshold.  A bracket [low, high] with
count(low) > wanted > count(high) shrinks until a count lies in the band or nothing is left between its ends.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

from ..errors import InvalidOption
from .counts import is_number
from .kernels import Kernels, Moments


@dataclass(frozen=True)
class Band:
    """The counts that are good enough: least <= count <= most, aiming at wanted."""

    least: int
    wanted: int
    most: int

    def __contains__(self, count: int) -> bool:
        return self.least <= count <= self.most


def band_around(count: int, tolerance: tuple[float, float]) -> Band:
    """tolerance * count, in whole entries that include the count itself."""
    low, high = tolerance
    return Band(max(1, math.ceil(low * count - 1e-9)), count, max(count, math.floor(high * count + 1e-9)))


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

    Tails of gradients fall about exponentially, so this line is nearly the curve itself.  The step is kept off
    both ends, so that the bracket always shrinks.
    """
    most, least = math.log(bracket.low_count), math.log(max(bracket.high_count, 0.5))
    fraction = (most - math.log(wanted)) / (most - least) if most > least else 0.5
    return bracket.low + min(0.95, max(0.05, fraction)) * (bracket.high - bracket.low)


STEPS: dict[str, Callable[[Bracket, int], float]] = {"bisection": bisection, "log_count": log_count}


def check_search(owner: str, search: Any, tolerance: Any, max_passes: Any) -> None:
    """Refuse options that no search could keep."""
    if not isinstance(search, str) or search not in STEPS:
        raise InvalidOption(f"search of {owner} is {search!r}: one of {', '.join(sorted(STEPS))}")
    if not is_tolerance(tolerance):
        raise InvalidOption(f"tolerance of {owner} is {tolerance!r}: two numbers (low, high) with 0 < low <= 1 <= high")
    if isinstance(max_passes, bool) or not isinstance(max_passes, int) or max_passes < 1:
        raise InvalidOption(f"max_passes of {owner} is {max_passes!r}: a whole number of at least 1")


def is_tolerance(tolerance: Any) -> bool:
    """Whether these are bounds of a count over k."""
    is_pair = isinstance(tolerance, (tuple, list)) and len(tolerance) == 2 and all(map(is_number, tolerance))
    return is_pair and 0 < tolerance[0] <= 1 <= tolerance[1]


@dataclass(frozen=True)
class SearchResult:
    """A threshold, whether its count lies in the band, and the passes it took.

    Not converged: ``threshold`` is the bracket's low end, which more entries than wanted reach (all non-zeros,
    where it is 0), so that the top-k are among them.
    """

    threshold: float
    converged: bool
    passes: int


def search_threshold(
    x: np.ndarray, first: float, band: Band, moments: Moments, kernels: Kernels, search: str, max_passes: int
) -> SearchResult:
    """A threshold whose count lies in the band, starting at ``first``.

    Every pass counts once over x.  Ends after ``max_passes``, or as soon as no number of x's precision lies
    strictly inside the bracket (ties, spikes).
    """
    round_to = x.dtype.type
    bracket = Bracket(0.0, float(moments.abs_max), moments.nonzeros, 0)
    threshold = float(round_to(min(first, bracket.high)))
    if not threshold > 0.0:
        threshold = float(round_to(STEPS[search](bracket, band.wanted)))
    passes = 0
    widths = [bracket.width]
    while passes < max_passes and bracket.low < threshold <= bracket.high:
        count = kernels.count_at_least(x, threshold)
        passes += 1
        if count in band:
            return SearchResult(threshold, True, passes)
        bracket.narrow(threshold, count, band.wanted)
        widths.append(bracket.width)
        # Interpolation can creep along one end of a curve that bends the other way: two passes must halve the bracket.
        creeps = passes >= 3 and widths[-1] > 0.5 * widths[-3]
        threshold = float(round_to((bisection if creeps else STEPS[search])(bracket, band.wanted)))
        if threshold == bracket.high:  # counted before, or the maximum itself, shared by too many
            break
    return SearchResult(bracket.low, False, passes)
