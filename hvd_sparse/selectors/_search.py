"""Search for a threshold that roughly the wanted number of entries reach. The search counts the
entries that reach a threshold, and narrows an interval of thresholds, the bracket."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels.contract import Kernels, Moments
from hvd_sparse.selectors._aim import Band
from hvd_sparse.selectors.contract import Found
from hvd_sparse.types import Selection


@lru_cache(maxsize=4096)  # called at every step of a tensor
def band_around(count: int, tolerance: tuple[float, float], numel: int) -> Band:
    low, high = tolerance
    # At most ``numel``, because buffers for the entries have this length, and high * count may be
    # infinite. 1e-9 compensates for rounding: for example, 1.13 * 100 is 112.99999999999999.
    most = math.floor(min(high * count + 1e-9, numel))
    return Band(max(1, math.ceil(low * count - 1e-9)), count, max(count, most))


@dataclass
class Bracket:
    """Two thresholds, and for each the number of entries that reach it. Too many entries reach
    ``low``, too few reach ``high``, so the wanted threshold lies between them."""

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
    return 0.5 * (bracket.low + bracket.high)


def log_count(bracket: Bracket, wanted: int) -> float:
    """Return an estimate of the threshold that ``wanted`` entries reach, always inside the bracket.
    The logarithm of the count is interpolated: it is nearly linear in large thresholds."""
    # A count of 0 has no logarithm, so half an entry takes its place.
    most, least = math.log(bracket.low_count), math.log(max(bracket.high_count, 0.5))
    fraction = (most - math.log(wanted)) / (most - least) if most > least else 0.5
    return bracket.low + min(0.95, max(0.05, fraction)) * (bracket.high - bracket.low)


CANDIDATES = 16
"""Upper bound of the number of entries that a search keeps in a list, as a multiple of k."""

STANDSTILLS = 2
"""A search gives up after this many passes whose count equals the count at one end of the bracket.
Such counts show that many magnitudes are equal, or that one very large entry has moved an end far
away, so further passes would not help."""

STEPS: dict[str, Callable[[Bracket, int], float]] = {"bisection": bisection, "log_count": log_count}


def check_tolerance(value: Any, what: str, *, is_strict: bool = False) -> tuple[float, float]:
    """Return the value as a tuple (low, high). Raises InvalidOption unless 0 < low <= 1 <= high.
    With ``is_strict``, low must be below 1."""
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2 and all(map(is_number, value))
    if not is_pair or not 0 < value[0] <= 1 <= value[1] or (is_strict and value[0] == 1):
        raise InvalidOption(
            f"{what} is {value!r}: give two numbers (low, high) with 0 < low "
            f"{'<' if is_strict else '<='} 1 <= high"
        )
    return tuple(value)


class _Counter:
    """Counts the entries of a vector that reach a threshold, and lists them if they are few. If the
    count is too high for the search to end, later thresholds are higher, so the counter then counts
    only among the listed entries (the candidates)."""

    def __init__(self, x: np.ndarray, band: Band, kernels: Kernels) -> None:
        self._x, self._band, self._kernels = x, band, kernels
        # List at most an eighth of the vector, or 3 k entries if that is more.
        few = min(CANDIDATES * band.wanted, max(x.size // 8, 3 * band.wanted))
        self._few = max(few, band.most)
        self.candidates: Selection | None = None
        self.passes = 0

    def take(self, threshold: float) -> tuple[int, Selection | None]:
        """Return the number of entries that reach the threshold, and these entries, unless they are
        too many for a list."""
        if self.candidates is None:
            count, taken = self._kernels.count_and_take(self._x, threshold, self._few)
            self.passes += 1
        else:
            kept = self._kernels.take_at_least(self.candidates.values, threshold)
            indices = self.candidates.indices[kept.indices]
            count, taken = kept.count, Selection(indices, kept.values, self._x.size)
        if count > self._band.most:
            self.candidates = taken
        return count, taken

    def largest(self) -> tuple[Selection, float]:
        if self.candidates is not None:
            return self._kernels.trim(self.candidates, self._band.wanted, None)
        selection = self._kernels.take_largest(self._x, self._band.wanted)
        return selection, float(np.abs(selection.values).min()) if selection.count else 0.0


def search_threshold(
    x: np.ndarray,
    first: float,
    band: Band,
    moments: Moments,
    kernels: Kernels,
    search: str,
    max_passes: int,
    known: tuple[float, int] | None = None,
) -> Found:
    """Search for a threshold that ``band.least`` to ``band.most`` entries of ``x`` reach. Return
    the threshold and these entries.

    The search fails after ``max_passes`` counts, or if no number of the dtype lies inside the
    bracket. It also fails if ``STANDSTILLS`` counts equal the count at one of its ends. Then the
    ``band.wanted`` largest entries are returned (``is_fallback``), and the threshold is the
    smallest of their magnitudes.

    first : threshold of the first count
    search : how the next threshold is computed: "bisection" or "log_count"
    max_passes : largest number of counts, in the vector or among the entries of a list
    known : a threshold and the number of entries that reach it, if they have been counted before
    """
    round_to = x.dtype.type
    bracket = Bracket(0.0, float(moments.abs_max), moments.nonzeros, 0)
    if known is not None and known[0] < bracket.high:
        bracket.narrow(*known, band.wanted)
    # Round to x's precision, as kernels do; otherwise the bracket might never close.
    threshold = float(round_to(min(first, bracket.high)))
    if not threshold > bracket.low:  # also if it is NaN
        threshold = float(round_to(STEPS[search](bracket, band.wanted)))
    counter = _Counter(x, band, kernels)
    widths, standstills = [bracket.width], 0
    while len(widths) <= max_passes and bracket.low < threshold <= bracket.high:
        count, taken = counter.take(threshold)
        if taken is not None and count in band:
            return Found(taken, threshold, counter.passes)
        # Repeated counts among candidates are allowed, because they are cheap.
        if counter.candidates is None and count in (bracket.low_count, bracket.high_count):
            standstills += 1
            if standstills == STANDSTILLS:
                break
        bracket.narrow(threshold, count, band.wanted)
        widths.append(bracket.width)
        # Interpolation can converge slowly: bisect if two passes have not halved the bracket.
        creeps = len(widths) > 3 and widths[-1] > 0.5 * widths[-3]
        threshold = float(round_to((bisection if creeps else STEPS[search])(bracket, band.wanted)))
        if threshold == bracket.high:  # already counted, or the maximum
            break
    selection, smallest = counter.largest()
    return Found(selection, smallest, counter.passes, is_fallback=True)
