"""Threshold search by counting: the threshold that a wanted number of entries reach.

The count is a step function that never rises with the threshold. A bracket [low, high] with
count(low) > wanted > count(high) shrinks until a count lies in the band or nothing is left between
its ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.contract import Kernels, Moments
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
    """Return tolerance * count as a band of whole entries that includes the count itself."""
    low, high = tolerance
    # 1e-9: in floats 1.13 * 100 is 112.99999999999999, and 113 entries are in that band.
    return Band(
        max(1, math.ceil(low * count - 1e-9)), count, max(count, math.floor(high * count + 1e-9))
    )


@dataclass
class Bracket:
    """Two thresholds and their counts: too many entries reach ``low``, too few reach ``high``."""

    low: float
    high: float
    low_count: int
    high_count: int

    @property
    def width(self) -> float:
        """Return the distance between the two thresholds."""
        return self.high - self.low

    def narrow(self, threshold: float, count: int, wanted: int) -> None:
        """Replace the end on whose side a counted threshold lies."""
        if count > wanted:
            self.low, self.low_count = threshold, count
        else:
            self.high, self.high_count = threshold, count


def bisection(bracket: Bracket, wanted: int) -> float:
    """Return the middle of the bracket: the binary search of the paper."""
    return 0.5 * (bracket.low + bracket.high)


def log_count(bracket: Bracket, wanted: int) -> float:
    """Return the threshold at which the interpolated logarithm of the count is the wanted one.

    Tails of gradients fall about exponentially, so a straight line between the logarithms at both
    ends is nearly the curve itself. The step is kept off both ends, so that the bracket always
    shrinks.
    """
    # Half an entry stands for none, whose logarithm there is not.
    most, least = math.log(bracket.low_count), math.log(max(bracket.high_count, 0.5))
    fraction = (most - math.log(wanted)) / (most - least) if most > least else 0.5
    return bracket.low + min(0.95, max(0.05, fraction)) * (bracket.high - bracket.low)


CANDIDATES = 16
"""Entries over k that are worth taking before the search is over."""

STANDSTILLS = 2
"""Counts over the whole vector that repeat an end of the bracket, after which the search ends.

Between the ends lie many equal magnitudes then, or a spike pulled one end far away, and further
passes would tell nothing."""

STEPS: dict[str, Callable[[Bracket, int], float]] = {"bisection": bisection, "log_count": log_count}


def check_search(owner: str, search: object, tolerance: object, max_passes: object) -> None:
    """Raise InvalidOption for options that no search could keep."""
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


def is_tolerance(tolerance: object) -> bool:
    """Tell whether a value is a pair of bounds (low, high) on count / k with 0 < low <= 1 <=
    high."""
    if not isinstance(tolerance, (tuple, list)) or len(tolerance) != 2:
        return False
    return all(map(is_number, tolerance)) and 0 < tolerance[0] <= 1 <= tolerance[1]


@dataclass(frozen=True)
class SearchResult:
    """A threshold, the entries that reach it, and the cost of finding it.

    Attributes
    ----------
    threshold : its count lies in the band if ``converged``; else it is the smallest magnitude
        selected
    converged : True if a count in the band was found
    passes : counts over the whole vector
    selection : the entries that reach the threshold; if not ``converged``, the largest, as many as
        wanted
    """

    threshold: float
    converged: bool
    passes: int
    selection: Selection


class _Counter:
    """Counter over the whole vector until few enough entries are left, and then over these alone.

    A threshold that too many entries reach, but not far too many, is still of use: the entries
    above any higher threshold are among them. They are taken once, and the search goes on in a list
    of a few times k.
    """

    def __init__(self, x: np.ndarray, wanted: int, kernels: Kernels) -> None:
        self._x, self._kernels = x, kernels
        # At most an eighth of the vector is copied, unless 3 k entries are more.
        self._few = min(CANDIDATES * wanted, max(x.size // 8, 3 * wanted))
        self._candidates: Selection | None = None
        self._last: tuple[float, Selection | None] = (-1.0, None)
        self.passes = 0

    def count(self, threshold: float, most: int) -> int:
        """Return how many entries reach a threshold; keep them as candidates if they exceed
        ``most``."""
        if self._candidates is not None:
            return self._kernels.count_at_least(self._candidates.values, threshold)
        # Counting and taking in one pass: the last count is mostly the right one.
        count, taken = self._kernels.count_and_take(self._x, threshold, self._few)
        self.passes += 1
        self._last = threshold, taken
        # Any threshold searched from here on is higher: what it leaves is among the taken.
        if count > most:
            self._candidates = taken
        return count

    @property
    def is_short(self) -> bool:
        """Tell whether the entries left to search are a list of candidates."""
        return self._candidates is not None

    def largest(self, count: int) -> tuple[Selection, float]:
        """Return the largest entries and the smallest magnitude among them, where no threshold
        leaves so many."""
        if self._candidates is not None:
            return self._kernels.trim(self._candidates, count, None)
        selection = self._kernels.take_largest(self._x, count)
        return selection, float(np.abs(selection.values).min()) if selection.count else 0.0

    def take(self, threshold: float) -> Selection:
        """Return the entries that reach a threshold that was counted."""
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
    kernels: Kernels,
    search: str,
    max_passes: int,
    known: tuple[float, int] | None = None,
) -> SearchResult:
    """Search a threshold whose count lies in the band, and take the entries that reach it.

    The search ends after ``max_passes`` counts, over the vector or over candidates, or as soon as
    no number of x's precision lies strictly inside the bracket (ties, spikes), or after
    ``STANDSTILLS``. What is left then is exact selection.

    Parameters
    ----------
    x : float32 or float64 [numel]
    first : the threshold to count first
    band : the counts that end the search
    moments : of x
    kernels : of the engine
    search : "bisection" or "log_count"
    max_passes : counts after which the search is given up
    known : a threshold that was counted before, and its count

    Returns
    -------
    SearchResult : the threshold and its entries
    """
    round_to = x.dtype.type
    bracket = Bracket(0.0, float(moments.abs_max), moments.nonzeros, 0)
    if known is not None and known[0] < bracket.high:
        bracket.narrow(*known, band.wanted)
    # In x's own precision: kernels round thresholds to it, and a finer bracket would never close.
    threshold = float(round_to(min(first, bracket.high)))
    if not threshold > bracket.low:  # a NaN, too
        threshold = float(round_to(STEPS[search](bracket, band.wanted)))
    counter = _Counter(x, band.wanted, kernels)
    widths, standstills = [bracket.width], 0
    while len(widths) <= max_passes and bracket.low < threshold <= bracket.high:
        count = counter.count(threshold, band.most)
        if count in band:
            return SearchResult(threshold, True, counter.passes, counter.take(threshold))
        # Counts among candidates cost next to nothing: they may repeat.
        if not counter.is_short and count in (bracket.low_count, bracket.high_count):
            standstills += 1
            if standstills == STANDSTILLS:
                break
        bracket.narrow(threshold, count, band.wanted)
        widths.append(bracket.width)
        # Interpolation can creep along one end of a curve that bends the other way: two passes must
        # halve the bracket.
        creeps = len(widths) > 3 and widths[-1] > 0.5 * widths[-3]
        threshold = float(round_to((bisection if creeps else STEPS[search])(bracket, band.wanted)))
        if threshold == bracket.high:  # counted before, or the maximum itself, shared by too many
            break
    selection, smallest = counter.largest(band.wanted)
    return SearchResult(smallest, False, counter.passes, selection)
