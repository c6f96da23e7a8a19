"""Every selector keeps its promises, on every engine, at every density, on data of every kind."""

from __future__ import annotations

import cases
import numpy as np
import pytest
from conformance import selector_checks
from conformance.selector_checks import DENSITIES
from distributions import ALL, draw

from hvd_sparse.core import reference
from hvd_sparse.registry import ENGINES, SELECTORS

engines = pytest.mark.parametrize("engine", cases.ENGINES, ids=str)
selectors = pytest.mark.parametrize("case", cases.SELECTORS, ids=str)
densities = pytest.mark.parametrize("density", DENSITIES)


@engines
@selectors
@densities
def test_selection_keeps_count_order_ties_and_inputs_on_every_distribution(engine, case, density):
    selector = case.create(SELECTORS, density=density)
    selector_checks.check_everything(selector, engine.create(ENGINES).kernels)


@selectors
@pytest.mark.parametrize(
    "check",
    [
        selector_checks.check_scaling_changes_nothing,
        selector_checks.check_signs_change_nothing,
        selector_checks.check_order_changes_nothing,
    ],
    ids=lambda check: check.__name__.removeprefix("check_"),
)
def test_selected_places_depend_on_relative_magnitudes_alone(case, check):
    for density in DENSITIES:
        check(case.create(SELECTORS, density=density))


@selectors
@pytest.mark.parametrize("numel", [0, 1, 1_000])
def test_selectors_accept_read_only_vectors_of_any_size(case, numel):
    x = draw("normal", numel)
    x.flags.writeable = False
    selection = case.create(SELECTORS, density=0.01).select(x)
    assert selection.numel == numel
    assert selection.count <= numel


@selectors
@pytest.mark.parametrize("name", ALL)
def test_selecting_twice_gives_the_same_bits(case, name):
    selector = case.create(SELECTORS, density=0.1)
    first, second = selector.select(draw(name, 500)), selector.select(draw(name, 500))
    assert first.indices.tobytes() == second.indices.tobytes()
    assert first.values.tobytes() == second.values.tobytes()


@selectors
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_selectors_end_even_on_what_the_pipeline_would_refuse(case, bad):
    x = draw("normal", 300)
    x[::7] = bad
    indices = case.create(SELECTORS, density=0.1).select(x).indices
    assert not np.isnan(x[indices]).any()


@selectors
@densities
def test_a_selector_tells_the_count_that_it_aims_at(case, density):
    selector = case.create(SELECTORS, density=density)
    for numel in (1, 2, 99, 100, 1_000, 12_345):
        assert selector.count(numel) == selector_checks.wanted(numel, density)
    assert selector.count(0) == 0


@selectors
def test_at_density_changes_the_density_and_nothing_else(case):
    selector = case.create(SELECTORS, density=0.01)
    assert selector.at_density(0.01) is selector
    assert selector.at_density(0.5) == case.create(SELECTORS, density=0.5)


class CountingKernels:
    """The reference kernels, counting how often each is called."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def __getattr__(self, name):
        def counted(*arguments):
            self.calls[name] = self.calls.get(name, 0) + 1
            return getattr(reference, name)(*arguments)

        return counted


@selectors
@pytest.mark.parametrize("name", ALL)
def test_declared_passes_are_the_calls_that_count(case, name):
    selector, kernels = case.create(SELECTORS, density=0.05), CountingKernels()
    found = selector_checks.find(selector, draw(name, 2_000), kernels)
    assert found.passes == kernels.calls.get("count_at_least", 0)
    assert kernels.calls.get("moments", 0) <= 1
