"""Muon before the selection, against its definition and torch's own."""

import numpy as np
import pytest
import worlds
from conformance.memory_checks import every_nth
from distributions import draw
from installed import is_installed

from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.registry import MEMORIES
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

SHAPE, STEPS, MOMENTUM = (12, 5), 8, 0.9
SPEC = TensorSpec("t", SHAPE, "float64")
MUON = {"id": "muon_correction", "momentum": MOMENTUM}
COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def update_of(gradients, *, nesterov=True, shape=SHAPE, scale=None):
    count = len(gradients)
    m = sum((1 - MOMENTUM) * MOMENTUM ** (count - 1 - i) * g for i, g in enumerate(gradients))
    u = (1 - MOMENTUM) * gradients[-1] + MOMENTUM * m if nesterov else m
    left, values, right = np.linalg.svd(u.reshape(shape), full_matrices=False)
    values /= np.sqrt((values**2).sum()) + 1e-7
    a, b, c = COEFFICIENTS
    for _ in range(5):
        values = a * values + b * values**3 + c * values**5
    scale = 0.2 * np.sqrt(max(shape)) if scale is None else scale
    return scale * (left * values @ right).reshape(-1)


@pytest.mark.parametrize("is_average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("nesterov", [True, False])
def test_what_is_added_is_the_orthogonalised_momentum_of_this_ranks_gradients(nesterov, is_average):
    state = MEMORIES.create("muon_correction", momentum=MOMENTUM, nesterov=nesterov).create(
        SPEC, rollback=True
    )
    state.is_average = is_average
    gradients, residual = [], np.zeros(60)
    for step in range(STEPS):
        gradients.append(draw("normal", 60, "float64", step))
        expected = update_of(gradients, nesterov=nesterov) / (1 if is_average else 4)
        state.step = step
        accumulated = state.compensate(gradients[-1], reference, 4).vector.copy()
        np.testing.assert_allclose(accumulated, residual + expected, rtol=1e-9, atol=1e-9)
        state.update(every_nth(accumulated, 5), True, reference)
        state.commit()
        residual = state.arrays()["residual"].copy()


def test_a_matrix_that_is_never_compressed_gets_muon_on_what_arrives():
    state = MEMORIES.create("muon_correction", momentum=MOMENTUM, scale=2.0).create(
        SPEC, rollback=True
    )
    gradients = []
    for step in range(STEPS):
        gradients.append(draw("normal", 60, "float64", step))
        state.step = step
        finished = state.finish(gradients[-1], np.zeros(60), False, reference)
        np.testing.assert_allclose(finished, update_of(gradients, scale=2.0), rtol=1e-9, atol=1e-9)
        state.commit()


def test_a_convolutions_kernel_is_a_matrix_with_a_row_an_output_channel():
    spec = TensorSpec("t", (6, 5, 2, 1), "float64")
    state = MEMORIES.create("muon_correction", momentum=MOMENTUM).create(spec, rollback=True)
    gradient = draw("normal", 60, "float64")
    added = state.compensate(gradient, reference).added
    np.testing.assert_allclose(added, update_of([gradient], shape=(6, 10)), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranks", [1, 3])
def test_density_1_is_the_mean_of_the_updates_that_muon_takes_from_each_ranks_gradients(ranks):
    """On one rank that is Muon."""
    configuration = worlds.configure("topk", 1.0, memory=MUON, allow_dense=True)

    def program(collective):
        session = Session(configuration, [SPEC], collective)
        given = [draw("normal", 60, "float64", 100 * collective.rank + step) for step in range(4)]
        applied = [session.reduce({"t": g.reshape(SHAPE)})["t"].reshape(-1) for g in given]
        return given, applied

    results = worlds.run(ranks, program)
    for step in range(4):
        expected = np.mean([update_of(given[: step + 1]) for given, _ in results], axis=0)
        for _, applied in results:
            np.testing.assert_allclose(applied[step], expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("codec", ["index_value", "sign_mean"])
def test_what_is_applied_and_what_waits_are_all_updates(codec):
    configuration = worlds.configure("topk", 0.1, memory=MUON, codec=codec)

    def program(collective):
        session, applied = Session(configuration, [SPEC], collective), np.zeros(60)
        given = [draw("normal", 60, "float64", 100 * collective.rank + step) for step in range(9)]
        for gradient in given:
            applied += session.reduce({"t": gradient.reshape(SHAPE)})["t"].reshape(-1)
        (state,) = session.step.transactions.settle_all().values()
        return given, applied, state.memory.arrays()["residual"].copy()

    results = worlds.run(3, program)
    updates = [update_of(given[: step + 1]) for given, *_ in results for step in range(9)]
    waiting = np.mean([residual for *_, residual in results], axis=0)
    assert waiting.any()
    for _, applied, _ in results:
        np.testing.assert_allclose(applied + waiting, np.sum(updates, axis=0) / 3, atol=1e-6)


def test_a_vector_in_a_group_of_muons_is_refused():
    spec = TensorSpec("bias", (60,), "float32")
    state = MEMORIES.create("muon_correction").create(spec, rollback=True)
    with pytest.raises(InvalidOption, match=r"'bias' has shape \[60\].*a group of Adam's"):
        state.tune(rate=1.0, momentum=0.9)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"weight_decay": 0.1}, "Muon applies weight decay"),
        ({"ns_steps": 0}, "ns_steps"),
        ({"ns_coefficients": (1.0, 2.0)}, "three numbers"),
        ({"scale": 0.0}, "scale"),
        ({"momentum": 1.0}, "momentum"),
    ],
)
def test_options_that_make_no_muon_are_refused(options, words):
    with pytest.raises(InvalidOption, match=words):
        MEMORIES.create("muon_correction", **options)


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
        ours = state.compensate(gradient, reference).added
        state.update(every_nth(ours, 1), True, reference)
        state.commit()
        theirs = (before - parameter.detach()).numpy().reshape(-1)
        assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()
        assert np.dot(ours, theirs) > 0.999 * np.linalg.norm(ours) * np.linalg.norm(theirs)
