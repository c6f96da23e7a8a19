"""The search for a threshold: how it steps, when it stops, what it promises when it does not find
one."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from distributions import ALL, SMOOTH, draw
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.kernels import reference
from hvd_sparse.selectors._search import (
    STEPS,
    Band,
    band_around,
    search_threshold,
)

searches = pytest.mark.parametrize("search", STEPS)


class Counter:
    """Counts by definition, and remembers what it was asked of the whole vector."""

    def __init__(self, whole: np.ndarray) -> None:
        self.whole = whole
        self.asked: list[float] = []

    def count_at_least(self, x, threshold):
        if x is self.whole:
            self.asked.append(threshold)
        return sum(v >= threshold for v in np.abs(x).tolist())

    def count_and_take(self, x, threshold, capacity):
        count = self.count_at_least(x, threshold)
        return count, reference.take_at_least(x, threshold) if count <= capacity else None

    def take_at_least(self, x, threshold):
        return reference.take_at_least(x, threshold)

    def take_largest(self, x, count):
        return reference.take_largest(x, count)

    def trim(self, taken, count, out):
        return reference.trim(taken, count, out)


def search_in(x, wanted, search, *, first=None, max_passes=60, tolerance=(0.8, 1.3)):
    counter = Counter(x)
    first = float(np.abs(x).mean()) if first is None else first
    band = band_around(wanted, tolerance)
    result = search_threshold(x, first, band, reference.moments(x), counter, search, max_passes)
    assert result.passes == len(counter.asked)
    return result, counter.asked, band


@given(
    count=st.integers(1, 10**6),
    low=st.integers(1, 100),
    high=st.integers(100, 400),
)
def test_band_holds_exactly_the_whole_counts_inside_the_tolerance_and_the_count_itself(
    count, low, high
):
    band = band_around(count, (low / 100, high / 100))
    least, most = Fraction(low, 100) * count, Fraction(high, 100) * count
    assert band.wanted == count and count in band
    assert least <= band.least < least + 1
    assert most - 1 < band.most <= most
    assert band.least - 1 not in band and band.most + 1 not in band


@pytest.mark.parametrize("count", [1, 2, 3])
def test_band_of_a_tolerance_of_nothing_is_the_count_alone(count):
    assert band_around(count, (1.0, 1.0)) == Band(count, count, count)


@searches
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("wanted", [1, 10, 150])
@pytest.mark.parametrize("max_passes", [1, 3, 60])
def test_search_ends_in_the_band_or_with_exactly_the_largest(search, name, wanted, max_passes):
    x = draw(name, 400)
    if np.count_nonzero(x) <= wanted * 1.3:
        return  # nothing to search for: the selector sends all
    result, asked, band = search_in(x, wanted, search, max_passes=max_passes)
    reached = sum(v >= result.threshold and v > 0 for v in np.abs(x).tolist())
    assert result.passes <= max_passes
    assert len(set(asked)) == len(asked), "a threshold was counted twice"
    if result.converged:
        assert reached in band
    else:
        assert (
            result.selection.indices.tolist() == reference.take_largest(x, wanted).indices.tolist()
        )
        assert result.threshold == np.abs(result.selection.values).min()
    assert result.threshold == np.float32(result.threshold)


@searches
@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("wanted", [20, 200, 2_000])
def test_search_converges_within_sixteen_passes_on_continuous_data(search, name, wanted):
    result, _, _ = search_in(draw(name, 20_000), wanted, search, max_passes=16)
    assert result.converged


@searches
def test_bracket_closes_on_ties_long_before_the_limit(search):
    x = np.ones(200, np.float32)
    x[::2] = np.nextafter(np.float32(1), np.float32(2))
    result, asked, _ = search_in(x, 10, search, first=1.0, max_passes=10_000)
    assert not result.converged
    assert result.threshold == float(x.max()) or result.threshold == 1.0
    assert len(asked) < 700


@searches
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_closing_bracket_shrinks_at_every_pass(search, dtype):
    """150 of 200 magnitudes are equal, so that 10 can never be met."""
    x = np.concatenate([np.full(150, 0.3), np.linspace(0.01, 0.2, 50)]).astype(dtype)
    x[0] = 1e6
    result, asked, _ = search_in(x, 10, search, max_passes=10_000)
    low, high = 0.0, 1e6
    for threshold in asked:
        assert low < threshold < high or threshold == 1e6
        low, high = (threshold, high) if threshold <= x[1] else (low, threshold)
    assert not result.converged
    assert result.threshold == x[1]


@searches
@pytest.mark.parametrize("first", [0.0, -1.0, 1e-300, 1e300, math.inf])
def test_search_survives_any_first_guess(search, first):
    result, _, _ = search_in(draw("normal", 2_000), 100, search, first=first)
    assert result.converged


@searches
def test_a_good_first_guess_takes_one_pass(search):
    x = draw("laplace", 5_000)
    first = float(np.sort(np.abs(x))[-50])
    result, asked, _ = search_in(x, 50, search, first=first)
    assert (result.converged, result.passes, asked) == (True, 1, [first])
