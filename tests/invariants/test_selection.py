"""Invariants 11, 12 and 16: how much of a vector is left, and which estimates agree."""

import numpy as np
import pytest
from distributions import draw, squares

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context
from hvd_sparse.selectors.ldte import laplace_threshold


def dropped(selection, x):
    """|x - C(x)|^2."""
    rest = x.copy()
    rest[selection.indices] -= selection.values
    return squares(rest)


@pytest.mark.parametrize("name", ["normal", "laplace", "student_t3", "uniform"])
@pytest.mark.parametrize("density", [0.01, 0.1, 0.5])
def test_bell_shaped_data_leaves_at_most_the_square(name, density):
    x = draw(name, 100_000, "float64")
    selection = SELECTORS.create("topk", density=density).select(x)
    assert dropped(selection, x) <= (1 - density) ** 2 * squares(x) * 1.001


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


@pytest.mark.parametrize("engine", ["numpy", "numba"])
@pytest.mark.parametrize("length", [10**12, 10**20])
@pytest.mark.parametrize("size", [0, 1_000])
def test_chunks_and_bins_longer_than_the_tensor_are_the_whole_tensor(engine, length, size):
    if engine == "numba":
        pytest.importorskip("numba")
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
