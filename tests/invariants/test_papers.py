"""Worked examples and identities of the papers. Invariants 11, 12 and 16: how much of a vector is
left, and which estimates agree. SIDCo: the gamma tail against scipy, and stages that change within
bounds."""

import cases
import numpy as np
import pytest
import worlds
from conformance.pass_checks import CountingKernels
from distributions import ALL, draw, squares

from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.registry import MEMORIES, SELECTORS
from hvd_sparse.selectors.contract import Context
from hvd_sparse.selectors.ldte import laplace_threshold
from hvd_sparse.selectors.sidco import tail_quantile, upper_tail
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.session import Session
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec


def test_the_worked_example_of_adacomp():
    residual = np.array([0.5, -0.2, 0, 0, 0.1, 0.1, -0.3, 0])
    gradient = np.array([0.12, -0.5, 0.05, -0.02, 0.05, -0.2, -0.1, 0.02])
    state = MEMORIES.create("error_feedback").create(
        TensorSpec("t", (8,), "float64"), rollback=True
    )
    state.load({"residual": residual})
    accumulated = state.compensate(gradient, reference).vector
    assert accumulated.tolist() == pytest.approx([0.62, -0.7, 0.05, -0.02, 0.15, -0.1, -0.4, 0.02])
    selection = (
        SELECTORS.create("adacomp", bin_length=4)
        .find(accumulated, Context(gradient=gradient))
        .selection
    )
    assert selection.indices.tolist() == [0, 1, 6]
    assert selection.values.tolist() == pytest.approx([0.55, -0.55, -0.55])
    state.update(selection, False)
    state.commit()
    left = state.arrays()["residual"].tolist()
    assert left == pytest.approx([0.07, -0.15, 0.05, -0.02, 0.15, -0.1, 0.15, 0.02])


@pytest.mark.parametrize(("shape", "length"), [((30, 41), 500), ((5, 2, 3, 41), 50)])
def test_adacomps_bins_are_of_50_for_convolutions_and_of_500_for_the_rest(shape, length):
    accumulated, gradient = draw("normal", 1_230), draw("normal", 1_230, seed=1)
    accumulated[500:1_000] = 0  # nothing is sent of a bin of zeros
    context = Context(gradient=gradient, spec=TensorSpec("t", shape, "float32"))
    usual, given = (
        SELECTORS.create("adacomp", **options).find(accumulated, context).selection
        for options in ({}, {"bin_length": length})
    )
    assert usual.indices.tolist() == given.indices.tolist()
    assert not (usual.indices // 500 == 1).any()
    maxima = [np.abs(accumulated[at : at + length]).max() for at in range(0, 1_230, length)]
    assert set(np.abs(usual.values).tolist()) == {np.float32(np.mean(maxima, dtype="f8"))}


@pytest.mark.parametrize("id", ["stc", "sbc", "ef_sign"])
@pytest.mark.parametrize("name", ALL)
def test_messages_of_signs_have_the_mean_of_the_kept_magnitudes(id, name):
    x = draw(name, 500, "float64")
    x[x == 0] = 1e-9
    selector = SELECTORS.create(id, **({} if id == "ef_sign" else {"density": 0.1}))
    selection = selector.select(x)
    mean = np.abs(x[selection.indices]).mean()
    assert np.abs(selection.values) == pytest.approx(np.full(selection.count, mean), rel=1e-9)
    assert selection.count == (500 if id == "ef_sign" else 50) or id == "sbc"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("flip", [1, -1])
def test_sbc_sends_the_side_with_the_larger_mean(name, flip):
    """By the definition, with plain sorting; a tie of the means goes to the positive side."""
    x = flip * draw(name, 400, "float64")
    selection = SELECTORS.create("sbc", density=0.05).select(x)
    sides = [sorted((v for v in sign * x if v > 0), reverse=True)[:20] for sign in (1, -1)]
    means = [float(np.mean(side)) if side else 0.0 for side in sides]
    side, sign = (sides[0], 1) if means[0] >= means[1] else (sides[1], -1)
    assert sorted(sign * x[selection.indices], reverse=True) == side
    if side:
        assert set(selection.values.tolist()) == {selection.values[0]}
        assert sign * selection.values[0] == pytest.approx(float(np.mean(side)))


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("world_size", [1, 2, 3, 6])
def test_signsgd_applies_the_sign_that_most_ranks_have_sent(world_size, average):
    specs = worlds.tensors((40, 5), (7,))
    options = {"memory": "majority_vote", "codec": "one_bit", "min_numel": 10}
    configuration = Configuration.create(selector="sign_vote", **options)

    def script(collective):
        session = Session(configuration, specs, collective, average=average)
        given = worlds.integers(specs, collective.rank)
        return given, session.reduce(given)

    outcomes = worlds.run(world_size, script)
    votes = sum(np.sign(given["t0"]).astype(int) for given, _ in outcomes)
    total = sum(given["t1"] for given, _ in outcomes)
    for _, applied in outcomes:
        assert applied["t0"].tolist() == np.sign(votes).tolist()
        assert applied["t1"].tolist() == np.sign(total).tolist()


def test_what_exceeds_a_signed_threshold_stays():
    x = np.array([0.3, -2.5, 1.0, 0.0, -0.9])
    selection = SELECTORS.create(
        "fixed_threshold", threshold=1.0, max_density=1.0, signs_only=True
    ).select(x)
    assert (selection.indices.tolist(), selection.values.tolist()) == ([1, 2], [-1.0, 1.0])


@pytest.mark.parametrize("clip", [None, 2.5, 1.0])
def test_ternary_gradients_are_unbiased_for_the_clipped_gradient(clip):
    x, rng, rounds = draw("laplace", 100, "float64"), np.random.default_rng(4), 20_000
    selector, total = SELECTORS.create("terngrad", clip=clip), np.zeros(100)
    for _ in range(rounds):
        sent = selector.select(x, rng=rng)
        total[sent.indices] += sent.values
    limit = np.abs(x).max() if clip is None else min(np.abs(x).max(), clip * x.std(ddof=1))
    assert np.abs(total / rounds - np.clip(x, -limit, limit)).max() < 5 * limit / 2 / np.sqrt(
        rounds
    )


def test_redsync_counts_nothing_while_it_uses_its_threshold_again():
    selector = SELECTORS.create("redsync_search", density=0.01, reuse_steps=3)
    warm, memo, passes = None, None, []
    for _ in range(9):
        x = draw("normal", 5_000)
        kernels = CountingKernels(x.size)
        found = selector.find(x, Context(kernels=kernels, warm=warm, memo=memo))
        warm, memo = found.threshold, found.memo
        passes.append(
            (found.passes > 0, "count_and_take" in kernels.asked, "moments" in kernels.asked)
        )
    searched, reused = (True,) * 3, (False,) * 3
    assert passes == [searched, reused, reused, reused, searched, reused, reused, reused, searched]


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_redsync_drops_a_threshold_that_no_longer_fits(scale):
    selector, x = SELECTORS.create("redsync_search", density=0.01), draw("normal", 5_000)
    first = selector.find(x, Context())
    again = selector.find(scale * x, Context(warm=first.threshold, memo=first.memo))
    assert again.memo == 0
    assert 50 <= again.selection.count <= 100


def sent_indices(case, rank, key="t", step=0):
    configuration = Configuration.create(selector=case.create(SELECTORS, density=0.05))
    pipeline = Pipeline(configuration, reference)
    pipeline.rank, pipeline.world_size = rank, 4
    state = TensorState(TensorSpec(key, (40, 50), "float32"), configuration)
    state.steps = step
    return pipeline.send(
        state, draw("normal", 2_000, seed=rank), dense=False
    ).found.selection.indices.tolist()


@pytest.mark.parametrize(
    "case",
    [case for case in cases.SELECTORS if case.create(SELECTORS, density=0.1).needs_rng],
    ids=str,
)
def test_draws_depend_on_tensor_step_and_rank_alone_and_touch_no_global_generator(case):
    before = np.random.get_state()[1].tolist()
    first = [sent_indices(case, rank) for rank in range(4)]
    last_first = [sent_indices(case, rank) for rank in reversed(range(4))][::-1]
    assert first == last_first
    assert np.random.get_state()[1].tolist() == before
    assert sent_indices(case, 0, key="u") != first[0] or not case.id.startswith("random")
    if case.create(SELECTORS, density=0.1).has_shared_indices:
        assert first == [first[0]] * 4
        assert sent_indices(case, 0, step=1) != first[0]
    else:
        assert len({str(indices) for indices in first}) == 4


def test_dgc_accounting_of_resnet_50_gives_the_published_ratio():
    """6 bytes an entry at 0.1 % of the weights; biases and norms dense."""
    weights, others = 25_502_912, 54_120
    sent = 6 * count_from_density(weights, 0.001) + 4 * others
    assert sent / 2**20 == pytest.approx(0.352, abs=5e-4)
    assert 4 * (weights + others) / sent == pytest.approx(276.7, abs=0.05)


@pytest.mark.parametrize("id", ["topk", "random_k"])
def test_the_residual_stays_bounded(id):
    """|r|^2 <= 4 (1 - d) / d^2, d = k / n, for gradients of norm 1 (random places: in the mean)."""
    numel, density, rng = 50, 0.1, np.random.default_rng(5)
    selector, residual, seen = SELECTORS.create(id, density=density), np.zeros(numel), []
    for _ in range(400):
        gradient = rng.normal(size=numel)
        residual += gradient / np.linalg.norm(gradient)
        residual[selector.select(residual, rng=rng).indices] = 0
        seen.append(squares(residual))
    assert np.mean(seen) <= 4 * (1 - density) / density**2


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
