"""Every selector keeps its promises, on every engine, at every density, on data of every kind."""

import cases
import numpy as np
import pytest
from conformance import selector_checks
from conformance.pass_checks import check_few_passes_where_no_threshold_is, check_passes_on_all
from conformance.selector_checks import DENSITIES
from distributions import ALL, draw
from recorded import recorded

from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import ENGINES, SELECTORS

with_density = pytest.mark.parametrize(
    "case",
    [case for case in cases.SELECTORS if hasattr(case.create(SELECTORS, density=0.1), "density")],
    ids=str,
)
SHORT = {("numpy", 0.01), ("numba", 0.1)}
"""Engines and densities of the short run; both are crossed in the full one."""
engines_and_densities = pytest.mark.parametrize(
    ("engine", "density"),
    [
        pytest.param(
            case,
            density,
            id=f"{case}-{density}",
            marks=() if (case.id, density) in SHORT else pytest.mark.full,
        )
        for case in cases.ENGINES
        if not case.options
        for density in DENSITIES
    ],
)
selectors = pytest.mark.parametrize("case", cases.SELECTORS, ids=str)
densities = pytest.mark.parametrize("density", DENSITIES)


def select(case, density, x):
    return case.create(SELECTORS, density=density).select(x, rng=np.random.default_rng(3))


@selectors
@engines_and_densities
def test_selection_keeps_count_order_ties_and_inputs_on_every_distribution(engine, case, density):
    selector = case.create(SELECTORS, density=density)
    selector_checks.check_everything(selector, engine.create(ENGINES).kernels)


@selectors
def test_selectors_keep_their_promises_on_real_gradients(case):
    for each in recorded():
        if each.step in (1, 300):
            selector_checks.check_found(case.create(SELECTORS, density=each.density), each.values)


@selectors
def test_selected_places_depend_on_nothing_that_the_selector_ignores(case):
    for density in DENSITIES:
        selector_checks.check_what_it_ignores(case.create(SELECTORS, density=density))


@selectors
@densities
def test_searches_of_smooth_distributions_converge(case, density):
    selector = case.create(SELECTORS, density=density)
    if hasattr(selector, "max_passes") and "max_passes" not in case.options:
        selector_checks.check_searches_converge(selector, selector.max_passes)


@selectors
def test_selecting_twice_gives_the_same_bits(case):
    for name in ALL:
        first, second = select(case, 0.1, draw(name, 500)), select(case, 0.1, draw(name, 500))
        assert first.indices.tobytes() == second.indices.tobytes(), name
        assert first.values.tobytes() == second.values.tobytes(), name


@selectors
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_selectors_end_even_on_what_the_pipeline_would_refuse(case, bad):
    x = draw("normal", 300)
    x[::7] = bad
    indices = select(case, 0.1, x).indices
    assert not SELECTORS.get(case.id).is_by_magnitude or not np.isnan(x[indices]).any()


@selectors
def test_a_selector_that_draws_says_so_where_nobody_gave_it_a_generator(case):
    selector = case.create(SELECTORS, density=0.1)
    if selector.needs_rng:
        with pytest.raises(InvalidOption, match="give it rng="):
            selector.select(draw("normal", 1_000))
        assert isinstance(selector.seed, int)
    else:
        selector.select(draw("normal", 1_000))


@with_density
@densities
def test_a_selector_tells_the_count_that_it_aims_at(case, density):
    selector = case.create(SELECTORS, density=density)
    for numel in (1, 2, 99, 100, 1_000, 12_345, 2**32 - 1):
        assert selector.count(numel) == selector_checks.wanted(numel, density)
    assert selector.count(0) == 0


@with_density
def test_at_density_changes_the_density_and_nothing_else(case):
    selector = case.create(SELECTORS, density=0.01)
    assert selector.at_density(0.01) is selector
    assert selector.at_density(0.5) == case.create(SELECTORS, density=0.5)


@selectors
def test_declared_passes_are_the_calls_that_count(case):
    check_passes_on_all(case.create(SELECTORS, density=0.05))


@pytest.mark.parametrize("id", ["ldte_bs", "topk", "redsync_search", "ldte"])
def test_where_no_threshold_takes_so_many_a_few_passes_are_enough(id):
    check_few_passes_where_no_threshold_is(SELECTORS.get(id)(0.001))
