"""LDTE and LDTE-BS: the estimate, the search that corrects it, and exact top-k where that ends."""

import math

import numpy as np
import pytest
from conformance.selector_checks import check_found, wanted
from distributions import SMOOTH, after_error_feedback, draw

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.selectors._aim import Miss
from hvd_sparse.selectors._search import STEPS, band_around, search_threshold
from hvd_sparse.selectors.contract import Context
from hvd_sparse.selectors.dgc_sampled import DgcSampled
from hvd_sparse.selectors.ldte import Ldte
from hvd_sparse.selectors.ldte_bs import LdteBs

DENSITIES = (0.001, 0.01, 0.1)
GRADIENTS = tuple(SMOOTH)
searches = pytest.mark.parametrize("search", STEPS)
densities = pytest.mark.parametrize("density", DENSITIES)


@searches
@densities
@pytest.mark.parametrize("name", GRADIENTS)
def test_ldte_bs_holds_after_error_feedback_and_begins_warm(name, density, search):
    x, selector = after_error_feedback(name, density), LdteBs(density, search=search)
    cold = selector.find(x, Context())
    assert not cold.is_fallback and cold.passes <= 12
    assert selector.find(x, Context(warm=cold.threshold)).passes <= 3
    for warm in (None, cold.threshold):
        check_found(selector, x, warm=warm)
    deaf = LdteBs(density, search=search, warm_start=False).find(x, Context(warm=1e-30))
    assert (deaf.passes, deaf.threshold) == (cold.passes, cold.threshold)


def test_an_unknown_count_of_a_group_does_not_narrow_the_search():
    x = draw("normal", 5_000)
    aim = Aim(float(np.sort(np.abs(x))[-20]), 300)  # 20 entries reach it, and 50 are wanted
    assert Miss(aim, None).known == (aim.threshold, 301)
    found = LdteBs(0.01).find(x, Context(miss=Miss(aim, None, is_sure=False)))
    assert not found.is_fallback
    assert 40 <= found.selection.count <= 65


def test_if_hardly_more_than_wanted_are_not_zero_these_are_sent_and_the_warm_threshold_is_kept():
    more = np.zeros(1_000, np.float32)
    more[::80] = draw("normal", 13)
    for x in (draw("few_nonzeros", 1_000), more):
        found = LdteBs(0.01).find(x, Context(warm=0.125))
        assert found.selection.indices.tolist() == np.flatnonzero(x).tolist()
        assert (found.passes, found.is_fallback, found.threshold) == (0, False, 0.125)


@densities
@pytest.mark.parametrize("name", GRADIENTS)
def test_ldte_sends_what_lies_above_its_formula(name, density):
    """mean |x| * ln(n / k)."""
    x, k = draw(name, 20_000), wanted(20_000, density)
    threshold = math.fsum(np.abs(x).tolist()) / x.size * math.log(x.size / k)
    count = np.count_nonzero(np.abs(x) >= threshold)
    expected = min(max(count, 1), 8 * k)
    found = Ldte(density).find(x, Context())
    assert abs(found.selection.count - expected) <= 1  # an entry within a rounding of the threshold
    assert found.is_fallback == (count > 8 * k)


@pytest.mark.parametrize(
    "selector",
    [LdteBs(0.01, tolerance=(0.8, 1e308)), DgcSampled(0.01, bounds=(0.8, 1e308))],
    ids=["ldte_bs", "dgc_sampled"],
)
def test_a_tolerance_without_an_upper_bound_does_not_overflow(selector):
    """A band has at most all entries: frames are written to a buffer of this length."""
    assert LdteBs(0.01, tolerance=(0.8, 1e308)).band(5_000).most == 5_000
    assert selector.select(draw("normal", 5_000), rng=np.random.default_rng(0)).count >= 40


@searches
@pytest.mark.parametrize("first", [0.0, -1.0, 1e-300, 1e300, math.inf])
def test_search_survives_any_first_guess(search, first):
    x, band = draw("normal", 2_000), band_around(100, (0.8, 1.3), 2_000)
    moments = reference.moments(x)
    assert not search_threshold(x, first, band, moments, reference, search, 60).is_fallback
