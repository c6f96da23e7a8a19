"""SIDCo: the gamma tail against scipy, and stages that change within bounds."""

import pytest
from distributions import draw

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context
from hvd_sparse.selectors.sidco import tail_quantile, upper_tail


@pytest.mark.parametrize("shape", [0.05, 0.3, 0.5, 1.0, 1.7, 5.0, 40.0])
@pytest.mark.parametrize("x", [0.0, 1e-6, 0.1, 0.9, 1.0, 2.0, 6.0, 30.0, 100.0])
def test_the_upper_tail_is_scipys(shape, x):
    special = pytest.importorskip("scipy.special")
    assert upper_tail(shape, x) == pytest.approx(special.gammaincc(shape, x), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("shape", [0.05, 0.3, 1.0, 1.7, 5.0])
@pytest.mark.parametrize("probability", [0.25, 0.1, 1e-2, 1e-4])
def test_the_quantile_is_scipys(shape, probability):
    special = pytest.importorskip("scipy.special")
    assert tail_quantile(shape, probability) == pytest.approx(
        special.gammainccinv(shape, probability), rel=1e-6
    )


@pytest.mark.parametrize("distribution", ["exponential", "generalised_pareto", "gamma"])
@pytest.mark.parametrize("stages", [1, 3])
@pytest.mark.filterwarnings("ignore:overflow")
def test_the_square_of_a_large_mean_may_leave_the_range_of_float64(distribution, stages):
    selector = SELECTORS.create("sidco", density=0.01, distribution=distribution, stages=stages)
    assert 1 <= selector.select(draw("laplace", 5_000, "float64") * 1e200).count <= 400


def stages_over(steps, name, **options):
    selector, memo, seen = SELECTORS.create("sidco", density=0.01, **options), None, []
    for step in range(steps):
        found = selector.find(draw(name, 5_000, seed=step), Context(memo=memo))
        memo = found.memo
        seen.append(int(memo[0]))
    return seen


@pytest.mark.parametrize("name", ["normal", "laplace", "lognormal", "uniform"])
def test_stages_change_by_one_after_whole_periods_and_stay_between_one_and_the_most(name):
    seen = stages_over(40, name, adapt_every=5)
    assert all(1 <= stages <= 7 for stages in seen)
    changes = [i for i in range(1, 40) if seen[i] != seen[i - 1]]
    assert all((i + 1) % 5 == 0 for i in changes)
    assert all(abs(seen[i] - seen[i - 1]) == 1 for i in changes)


def test_stages_that_are_right_stay_and_those_that_are_wrong_change():
    assert set(stages_over(40, "laplace")) == {1}
    assert set(stages_over(40, "uniform")) != {1}
    assert set(stages_over(40, "uniform", adapt_every=0)) == {1}
