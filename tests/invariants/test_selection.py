"""Invariants 11, 12 and 16: how much of a vector is left, and which estimates agree. SIDCo: the
gamma tail against scipy, and stages that change within bounds."""

import cases
import numpy as np
import pytest
from distributions import draw, squares

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context
from hvd_sparse.selectors.ldte import laplace_threshold
from hvd_sparse.selectors.sidco import tail_quantile, upper_tail


@pytest.mark.parametrize("name", ["normal", "laplace", "student_t3", "uniform"])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
def test_bell_shaped_data_leaves_at_most_the_square(name, density):
    x = draw(name, 100_000, "float64")
    left = np.delete(x, SELECTORS.create("topk", density=density).select(x).indices)
    assert squares(left) <= (1 - density) ** 2 * squares(x) * 1.001


@pytest.mark.parametrize("name", ["normal", "lognormal", "one_spike"])
def test_random_places_leave_their_share_in_expectation(name):
    """E |x - C(x)|^2 = (1 - k/n) |x|^2, every place equally often."""
    x, rng, rounds = draw(name, 100, "float64"), np.random.default_rng(2), 20_000
    selector, hits = SELECTORS.create("random_k", density=0.2), np.zeros(100)
    for _ in range(rounds):
        hits[selector.select(x, rng=rng).indices] += 1
    assert hits.sum() == 20 * rounds
    assert np.abs(hits / rounds - 0.2).max() < 5 * np.sqrt(0.2 * 0.8 / rounds)
    left = float(((1 - hits / rounds) * x**2).sum())
    spread = np.sqrt(float((x**4).sum()) * 0.16 / rounds)
    assert abs(left - 0.8 * squares(x)) < 6 * spread


@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_on_laplace_data_the_uncorrected_estimate_is_right(density):
    x = draw("laplace", 1_000_000)
    selection = SELECTORS.create("ldte", density=density).select(x)
    assert 0.9 <= selection.count / (1_000_000 * density) <= 1.1


@pytest.mark.parametrize("engine", [case.id for case in cases.ENGINES if not case.options])
@pytest.mark.parametrize("length", [10**12, 10**20])
@pytest.mark.parametrize("size", [0, 1_000])
def test_chunks_and_bins_longer_than_the_tensor_are_the_whole_tensor(engine, length, size):
    x, kernels = draw("normal", 1_000)[:size], resolve_engine(engine)
    chunked = SELECTORS.create("chunked", density=0.5, chunk_length=length)
    assert chunked.select(x, kernels=kernels).count == size
    found = SELECTORS.create("adacomp", bin_length=length).select(x, kernels=kernels)
    same = SELECTORS.create("adacomp", bin_length=max(1, size)).select(x, kernels=kernels)
    assert found.indices.tolist() == same.indices.tolist()


@pytest.mark.parametrize("variant", ["ours", "paper", "improved"])
def test_the_smallest_densities_have_a_quantile(variant):
    x = draw("normal", 1_000)
    selector = SELECTORS.create("gaussian_k", density=1e-17, variant=variant)
    assert 1 <= selector.select(x).count <= 8


@pytest.mark.parametrize("name", ["normal", "laplace", "student_t3", "lognormal"])
@pytest.mark.parametrize("density", [0.001, 0.01, 0.1])
def test_one_exponential_stage_is_the_laplace_estimate(name, density):
    x = draw(name, 100_000, "float64")
    found = SELECTORS.create("sidco", density=density).find(x, Context())
    moments = reference.moments(x)
    expected = min(moments.abs_max, laplace_threshold(moments, round(100_000 * density)))
    assert found.threshold == pytest.approx(expected, rel=1e-12)
    assert found.selection.count == SELECTORS.create("ldte", density=density).select(x).count


@pytest.mark.parametrize("shape", [0.05, 0.3, 0.5, 1.0, 1.7, 5.0, 40.0])
def test_the_upper_tail_and_its_quantile_are_scipys(shape):
    special = pytest.importorskip("scipy.special")
    for x in (0.0, 1e-6, 0.1, 0.9, 1.0, 2.0, 6.0, 30.0, 100.0):
        expected = special.gammaincc(shape, x)
        assert upper_tail(shape, x) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    for p in (0.25, 0.1, 1e-2, 1e-4):
        assert tail_quantile(shape, p) == pytest.approx(special.gammainccinv(shape, p), rel=1e-6)


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
