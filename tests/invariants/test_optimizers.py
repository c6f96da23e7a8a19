"""Adam and Muon before the selection, against their definitions, and torch's own Muon."""

import numpy as np
import pytest
import worlds
from conformance.exchange_checks import run_steps
from conformance.memory_checks import make_step, residual_of
from distributions import draw
from installed import is_installed

from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.memories._directions import OptimizerMoments
from hvd_sparse.registry import MEMORIES
from hvd_sparse.types import TensorSpec

NUMEL, STEPS, BETA1, BETA2, EPSILON = 60, 12, 0.9, 0.99, 1e-3
OPTIONS = {"beta1": BETA1, "beta2": BETA2, "epsilon": EPSILON}
SHAPE, MOMENTUM = (12, 5), 0.9
SPEC = TensorSpec("t", SHAPE, "float64")
MUON = {"id": "muon_correction", "momentum": MOMENTUM}

averages = pytest.mark.parametrize("is_average", [True, False], ids=["average", "sum"])


def average(values, beta):
    """Moving average that begins with 0."""
    return sum((1 - beta) * beta**age * value for age, value in enumerate(reversed(values)))


def moments_of(gradients):
    """Mean and square of gradients so far, as Kingma and Ba define them."""
    count, squares = len(gradients), [g * g for g in gradients]
    first = average(gradients, BETA1) / (1 - BETA1**count)
    return first, average(squares, BETA2) / (1 - BETA2**count)


def update_of(gradients, *, nesterov=True, shape=SHAPE, scale=None):
    m = average(gradients, MOMENTUM)
    u = (1 - MOMENTUM) * gradients[-1] + MOMENTUM * m if nesterov else m
    left, values, right = np.linalg.svd(u.reshape(shape), full_matrices=False)
    values /= np.sqrt((values**2).sum()) + 1e-7
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    scale = 0.2 * np.sqrt(max(shape)) if scale is None else scale
    return scale * (left * values @ right).reshape(-1)


@pytest.mark.parametrize(
    "memory", ["momentum_correction", "momentum_feedback", "adam_correction", "muon_correction"]
)
def test_an_optimizer_of_sums_has_moments_of_sums(memory):
    names = {"adam_correction": ("mean", "square")}.get(memory, ("momentum",))
    held = []
    for is_average in (True, False):
        state = MEMORIES.create(memory).create(SPEC, rollback=True)
        state.is_average, state.density, state.step = is_average, 1.0, 5
        given = {name: np.abs(draw("normal", NUMEL, "float64")) for name in names}
        for name in () if is_average else names:
            given[name] *= 4**2 if name == "square" else 4
        settings = {"momentum": MOMENTUM, "scale": 1.0} if memory == MUON["id"] else {}
        state.tune(rate=1.0, moments=OptimizerMoments(given, 5, 4), **settings)
        back = state.moments(5, 4).arrays
        for name in names:
            np.testing.assert_allclose(back[name], given[name], rtol=1e-12)
        held.append(state.arrays())
    for name, array in held[0].items():
        np.testing.assert_allclose(held[1][name], array, rtol=1e-12)


def check_added(state, expected_of, is_average, ranks):
    """Check what every step adds to the residual, from the gradients so far."""
    state.is_average = is_average
    gradients, residual = [], np.zeros(NUMEL)
    for step in range(STEPS):
        gradients.append(draw("normal", NUMEL, "float64", step) + 0.3)
        expected = expected_of(gradients) / (1 if is_average else ranks)
        state.step = step
        accumulated, _ = make_step(state, gradients[-1], 5, ranks)
        np.testing.assert_allclose(accumulated, residual + expected, rtol=1e-9, atol=1e-9)
        state.commit()
        residual = residual_of(state)


def check_dense(state, expected_of):
    gradients, parameter = [], draw("uniform", NUMEL, "float64")
    for step in range(STEPS):
        gradients.append(draw("normal", NUMEL, "float64", step))
        state.step = step
        finished = state.finish(gradients[-1], parameter, False, reference)
        np.testing.assert_allclose(finished, expected_of(gradients), rtol=1e-9, atol=1e-9)
        state.commit()


@averages
@pytest.mark.parametrize("world_size", [1, 4, 32])
@pytest.mark.parametrize(("amsgrad", "rollback"), [(False, True), (True, True), (True, False)])
def test_adam_adds_the_gradient_over_the_root_of_the_averages_second_moment(
    world_size, is_average, amsgrad, rollback
):
    def expected_of(gradients):
        steps = len(gradients)
        squares = [moments_of(gradients[:n])[1] * (1 - BETA2**n) for n in range(1, steps + 1)]
        square = (np.maximum.reduce(squares) if amsgrad else squares[-1]) / (1 - BETA2**steps)
        of_average = square
        if steps > 1:
            least = np.minimum(moments_of(gradients[:-1])[0] ** 2, square)
            of_average = square / world_size + (1 - 1 / world_size) * least
        if not amsgrad:
            added = (1 - BETA2) * gradients[-1] ** 2 / (1 - BETA2**steps)
            of_average = np.maximum(of_average, added / 4)
        return gradients[-1] / (np.sqrt(of_average) + EPSILON)

    state = MEMORIES.create("adam_correction", **OPTIONS).create(SPEC, rollback=rollback)
    state.tune(amsgrad=amsgrad, rate=1.0)
    check_added(state, expected_of, is_average, world_size)


def test_a_tensor_that_is_never_compressed_gets_adam_on_what_arrives():
    def expected_of(gradients):
        mean, square = moments_of(gradients)
        return mean / (np.sqrt(square) + EPSILON)

    check_dense(
        MEMORIES.create("adam_correction", **OPTIONS).create(SPEC, rollback=True), expected_of
    )


@averages
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_adds_the_orthogonalised_momentum_of_this_ranks_gradients(nesterov, is_average):
    state = MEMORIES.resolve({**MUON, "nesterov": nesterov}).create(SPEC, rollback=True)
    check_added(state, lambda each: update_of(each, nesterov=nesterov), is_average, 4)


def test_a_matrix_that_is_never_compressed_gets_muon_on_what_arrives():
    state = MEMORIES.resolve({**MUON, "scale": 2.0}).create(SPEC, rollback=True)
    check_dense(state, lambda gradients: update_of(gradients, scale=2.0))


def test_a_convolutions_kernel_is_a_matrix_with_a_row_an_output_channel():
    spec = TensorSpec("t", (6, 5, 2, 1), "float64")
    state = MEMORIES.create("muon_correction", momentum=MOMENTUM).create(spec, rollback=True)
    gradient = draw("normal", 60, "float64")
    added = state.compensate(gradient, reference).added
    np.testing.assert_allclose(added, update_of([gradient], shape=(6, 10)), rtol=1e-9, atol=1e-9)


def run_muon(ranks, steps, **options):
    """Return the outcomes of the ranks, and for every rank the updates of Muon."""

    def given(rank, step):
        return {"t": draw("normal", 60, "float64", 100 * rank + step).reshape(SHAPE)}

    configuration = worlds.configure(memory=MUON, **options)
    outcomes = run_steps(configuration, ranks, given, steps, specs=[SPEC], average=True)
    by_rank = [[now["t"].reshape(-1) for now in each["given"]] for each in outcomes]
    return outcomes, [[update_of(g[: step + 1]) for step in range(steps)] for g in by_rank]


@pytest.mark.parametrize("ranks", [1, 3])
def test_density_1_is_the_mean_of_the_updates_that_muon_takes_from_each_ranks_gradients(ranks):
    """On one rank that is Muon."""
    outcomes, updates = run_muon(ranks, 4, density=1.0, allow_dense=True)
    for each in outcomes:
        applied = [result["t"].reshape(-1) for result in each["applied"]]
        np.testing.assert_allclose(applied, np.mean(updates, axis=0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("codec", ["index_value", "sign_mean"])
def test_what_is_applied_and_what_waits_are_all_updates(codec):
    outcomes, updates = run_muon(3, 9, density=0.1, codec=codec)
    waiting = np.mean([each["kept"]["t"] for each in outcomes], axis=0)
    assert waiting.any()
    for each in outcomes:
        applied = sum(result["t"].reshape(-1) for result in each["applied"])
        np.testing.assert_allclose(applied + waiting, np.sum(updates, axis=(0, 1)) / 3, atol=1e-6)


def test_a_vector_in_a_group_of_muons_is_refused():
    spec = TensorSpec("bias", (60,), "float32")
    state = MEMORIES.create("muon_correction").create(spec, rollback=True)
    with pytest.raises(InvalidOption, match=r"'bias' has shape \[60\].*a group of Adam's"):
        state.tune(rate=1.0, momentum=0.9)


@pytest.mark.skipif(not is_installed("torch"), reason="torch is not installed")
@pytest.mark.parametrize("adjusts", [None, "original", "match_rms_adamw"])
@pytest.mark.parametrize("shape", [(12, 5), (5, 12)], ids=str)
def test_torchs_muon_takes_the_same_steps_in_bfloat16(shape, adjusts):
    import torch

    from hvd_sparse.frontend.torch.optimizer import settings_of

    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    parameter = torch.nn.Parameter(torch.zeros(shape))
    plain = torch.optim.Muon([parameter], lr=1.0, weight_decay=0.0, adjust_lr_fn=adjusts)
    state = MEMORIES.create("muon_correction").create(
        TensorSpec("t", shape, "float32"), rollback=True
    )
    for step in range(STEPS):
        before, gradient = parameter.detach().clone(), draw("normal", 60, seed=step)
        parameter.grad = torch.from_numpy(gradient.reshape(shape).copy())
        plain.step()
        state.step = step
        state.tune(**settings_of(plain, plain.param_groups[0], shape))
        ours, _ = make_step(state, gradient, 1)  # which leaves no residual
        state.commit()
        theirs = (before - parameter.detach()).numpy().reshape(-1)
        assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()
        assert np.dot(ours, theirs) > 0.999 * np.linalg.norm(ours) * np.linalg.norm(theirs)
