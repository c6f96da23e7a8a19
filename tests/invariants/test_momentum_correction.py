"""Invariants 4 and 5: DGC's memory against momentum SGD, ScaleCom's against its recursion."""

import math

import numpy as np
import pytest
import worlds
from conformance.memory_checks import make_step, residual_of
from distributions import draw

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.memories._directions import norm_of
from hvd_sparse.registry import MEMORIES
from hvd_sparse.step.session import Session
from hvd_sparse.types import Selection, TensorSpec

NUMEL, STEPS, RATE, MOMENTUM = 60, 25, 0.1, 0.9
SPEC = TensorSpec("t", (NUMEL,), "float64")
START = draw("uniform", NUMEL, "float64")

nesterov_or_not = pytest.mark.parametrize("nesterov", [False, True], ids=["plain", "nesterov"])
decays = pytest.mark.parametrize("weight_decay", [0.0, 0.05])


def gradient(parameter, step):
    return draw("normal", NUMEL, "float64", step) + 0.3 * parameter


def everything(x):
    return Selection(np.arange(x.size, dtype=np.uint32), x.copy(), x.size)


def sent_sparse(state, given, parameter):
    accumulated = state.compensate(given, reference).vector
    selection = everything(accumulated)
    state.update(selection, True)
    return state.finish(selection.values, parameter, True, reference)


def sent_dense(state, given, parameter):
    state.compensate(given, reference)
    return state.finish(state.take_all(), parameter, True, reference)


def never_compressed(state, given, parameter):
    return state.finish(given, parameter, False, reference)


def corrected(send, **options):
    state = MEMORIES.create("momentum_correction", momentum=MOMENTUM, **options).create(
        SPEC, rollback=True
    )
    parameter = START.copy()
    for step in range(STEPS):
        applied = send(state, gradient(parameter, step), parameter)
        state.commit()
        parameter = parameter - RATE * applied
    return parameter


def sgd(momentum, nesterov=False, weight_decay=0.0):
    parameter, buffer = START.copy(), np.zeros(NUMEL)
    for step in range(STEPS):
        d = gradient(parameter, step) + weight_decay * parameter
        buffer = momentum * buffer + d
        parameter = parameter - RATE * (d + momentum * buffer if nesterov else buffer)
    return parameter


@nesterov_or_not
@decays
@pytest.mark.parametrize("send", [sent_sparse, sent_dense, never_compressed])
def test_without_masking_sending_everything_is_momentum_sgd(send, nesterov, weight_decay):
    got = corrected(send, nesterov=nesterov, weight_decay=weight_decay, masking=False)
    np.testing.assert_allclose(got, sgd(MOMENTUM, nesterov, weight_decay), rtol=1e-6)


@nesterov_or_not
def test_dense_steps_keep_the_velocity_even_with_masking(nesterov):
    np.testing.assert_allclose(
        corrected(sent_dense, nesterov=nesterov), sgd(MOMENTUM, nesterov), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("memory", "other"),
    [
        ({"id": "momentum_correction", "momentum": 0.0}, "error_feedback"),
        ("momentum_feedback", "error_feedback"),
        ("muon_correction", "adam_correction"),
    ],
    ids=str,
)
def test_a_memory_is_another_bit_for_bit(memory, other):
    """DGC's without momentum, feedback below its bound, and Muon's for one dimension."""
    spec = TensorSpec("t", (NUMEL,), "float32")
    states = [MEMORIES.resolve(each).create(spec, rollback=True) for each in (memory, other)]
    for step in range(STEPS):
        vectors = []
        for state in states:
            state.step, state.density = step, 0.05
            vectors.append(make_step(state, draw("laplace", NUMEL, seed=step), 3, 4)[0])
            state.commit()
        assert vectors[0].tobytes() == vectors[1].tobytes()
    if memory == "momentum_feedback":
        assert not states[0].velocity.old.size, "a vector more than error feedback has"


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_what_arrives_of_long_gradients_at_right_angles_has_the_norm_that_was_asked_for(
    world_size, average
):
    """DGC's rule: N clipped gradients of which none points another's way are together as long as
    one."""
    memory = {"id": "momentum_correction", "clip_norm": 2.0}
    configuration = worlds.configure("topk", 1.0, memory=memory)

    def program(collective):
        given = np.zeros((8, 8), np.float32)
        given[collective.rank] = 100.0
        session = Session(configuration, worlds.tensors((8, 8)), collective, average=average)
        return session.reduce({"t0": given})["t0"]

    for reduced in worlds.run(world_size, program):
        assert math.isclose(np.linalg.norm(reduced), 2.0, rel_tol=1e-5)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_norms_are_right_whose_squares_leave_float32(scale):
    given = draw("normal", NUMEL) * np.float32(scale)
    assert math.isclose(norm_of(given), np.linalg.norm(given.astype(np.float64)), rel_tol=1e-6)


def test_a_gradient_that_is_short_enough_is_not_clipped():
    memory = MEMORIES.create("momentum_correction", clip_norm=2.0)
    given = 1e-3 * draw("normal", NUMEL, "float64")
    state = memory.create(SPEC, rollback=True)
    state.world_size = 4
    assert state.compensate(given, reference).vector.tolist() == given.tolist()


@pytest.mark.parametrize("rollback", [True, False])
@pytest.mark.parametrize(
    "memory", ["momentum_correction", "momentum_feedback", "adam_correction", "muon_correction"]
)
def test_a_clipped_gradient_counts_as_a_shorter_one_in_a_pass_that_takes(memory, rollback):
    clipped = MEMORIES.create(memory, clip_norm=1.0).create(SPEC, rollback=rollback)
    plain = MEMORIES.create(memory).create(SPEC, rollback=rollback)
    for step in range(STEPS):
        given = draw("normal", NUMEL, "float64", step)
        kept, aim = given.copy(), Aim(0.1, NUMEL)
        factor = 1.0 / np.sqrt(np.dot(given, given))
        found = [
            state.compensate(gradient, reference, aim).taking.taken
            for state, gradient in ((clipped, given), (plain, given * factor))
        ]
        assert given.tobytes() == kept.tobytes()
        assert np.array_equal(found[0].indices, found[1].indices) and found[0].count
        np.testing.assert_allclose(found[0].values, found[1].values, rtol=1e-12)
        for state, taken in zip((clipped, plain), found):
            state.update(taken, True, is_taken=True)
            state.commit()
        np.testing.assert_allclose(
            clipped.arrays()["residual"], plain.arrays()["residual"], rtol=1e-12, atol=1e-15
        )


@pytest.mark.parametrize("rollback", [True, False])
def test_clipping_a_gradient_with_inf_gives_no_warning_and_hides_nothing(rollback):
    """Pytest makes warnings errors."""
    state = MEMORIES.create("momentum_feedback", clip_norm=1.0).create(SPEC, rollback=rollback)
    given = draw("normal", NUMEL, "float64")
    given[3] = np.inf
    assert not state.compensate(given, reference).moments.is_finite
    assert state.compensate(given, reference, Aim(0.1, NUMEL)).taking.nonfinite


@pytest.mark.parametrize("beta", [0.1, 0.5, 1.0])
def test_the_low_pass_memory_follows_its_recursion(beta):
    """Sent: m' = (1 - beta) m; not sent: m' = m + beta g."""
    state = MEMORIES.create("low_pass", beta=beta).create(SPEC, rollback=True)
    memory = np.zeros(NUMEL)
    for step in range(STEPS):
        given = draw("normal", NUMEL, "float64", step)
        _, sent = make_step(state, given)
        state.commit()
        is_sent = np.isin(np.arange(NUMEL), sent.indices)
        memory = np.where(is_sent, (1 - beta) * memory, memory + beta * given)
        np.testing.assert_allclose(residual_of(state), memory, rtol=1e-12, atol=1e-12)
