"""Invariants 4 and 5: DGC's memory and error feedback with momentum's scale against momentum SGD,
ScaleCom's memory against its recursion."""

import math

import numpy as np
import pytest
import worlds
from conformance.exchange_checks import run_steps
from conformance.memory_checks import every_nth, make_step, residual_of
from distributions import draw
from hypothesis import given
from hypothesis import strategies as st

from hvd_sparse.errors import RankMismatch
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.memories._directions import norm_of
from hvd_sparse.memories.contract import Release
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


def sent_sparse(state, given, parameter):
    accumulated = state.compensate(given, reference).vector
    selection = every_nth(accumulated, 1)
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


def sgd(settings, nesterov):
    """SGD as torch has it: without momentum a step leaves the buffer alone."""
    parameter, buffer = START.copy(), np.zeros(NUMEL)
    for step, (momentum, weight_decay) in enumerate(settings):
        d = gradient(parameter, step) + weight_decay * parameter
        if momentum:
            buffer = momentum * buffer + d
            d = d + momentum * buffer if nesterov else buffer
        parameter = parameter - RATE * d
    return parameter


@nesterov_or_not
@decays
@pytest.mark.parametrize(
    ("send", "masking"),
    [(sent_sparse, False), (sent_dense, False), (sent_dense, True), (never_compressed, False)],
)
def test_without_masking_sending_everything_is_momentum_sgd(send, masking, nesterov, weight_decay):
    """Dense steps keep the velocity even with masking."""
    got = corrected(send, nesterov=nesterov, weight_decay=weight_decay, masking=masking)
    np.testing.assert_allclose(got, sgd([(MOMENTUM, weight_decay)] * STEPS, nesterov), rtol=1e-6)


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


# -- error feedback with momentum's scale --------------------------------------------------------

ALWAYS = [(0.9, 0.05)] * STEPS
CYCLING = [((0.9, 0.5, 0.0)[step % 3], 0.0 if step < 9 else 0.05) for step in range(STEPS)]


def state_of(rollback=True, **options):
    return MEMORIES.create("momentum_feedback", **options).create(SPEC, rollback=rollback)


def step_of(state, given_now, density, **settings):
    told = {"rate": 1.0, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, **settings}
    state.tune(**told)
    state.density = density
    accumulated = state.compensate(given_now, reference).vector.copy()
    if density == 1.0:
        return state.finish(state.take_all(), START, True, reference) * state.gain
    sent = reference.take_largest(accumulated, max(1, int(NUMEL * (density or 0.05))))
    send(state, sent)
    applied = accumulated - state.residual.new
    return applied * state.gain


def send(state, selected):
    """As the pipeline does."""
    release = state.release
    sent = selected if release is None else release.of(selected)
    state.update(sent, release is None)
    return sent


def owed_by(state, momentum, nesterov):
    residual, velocity = (state.arrays()[name] for name in ("residual", "momentum"))
    if not velocity.size:
        return residual / (1 - momentum)
    return residual + velocity * (momentum**2 if nesterov else momentum) / (1 - momentum)


@nesterov_or_not
@pytest.mark.parametrize("settings", [ALWAYS, CYCLING], ids=["steady", "cycling"])
@pytest.mark.parametrize("send", [sent_dense, never_compressed])
def test_sending_everything_is_the_optimizer_itself(send, settings, nesterov):
    state, parameter = state_of(), START.copy()
    for step, (momentum, decay) in enumerate(settings):
        told = {"momentum": momentum, "nesterov": nesterov, "weight_decay": decay}
        state.tune(rate=RATE, parameter=parameter, **told)
        state.density = 1.0
        applied = send(state, gradient(parameter, step), parameter)
        state.commit()
        parameter = parameter - RATE * applied
    np.testing.assert_allclose(parameter, sgd(settings, nesterov), rtol=1e-9)


PLACES = st.tuples(st.sampled_from([0.5, 0.1, 0.05, None]), st.sampled_from([0.0, 0.5, 0.9, 0.95]))
DENSITIES = st.sampled_from([1.0, 0.5, 0.1, 0.05, 0.02, None])
AT_ONE_MOMENTUM = st.sampled_from([0.5, 0.9, 0.99]).flatmap(
    lambda momentum: st.lists(st.tuples(DENSITIES, st.just(momentum)), max_size=30)
)


@given(
    places=st.lists(PLACES, max_size=30) | AT_ONE_MOMENTUM,
    nesterov=st.booleans(),
    rollback=st.booleans(),
    failing=st.sets(st.integers(0, 29)),
)
def test_no_gradient_is_lost_or_counted_twice_wherever_density_and_momentum_go(
    places, nesterov, rollback, failing
):
    """And a step that fails leaves no trace."""
    state, applied, total = state_of(rollback), np.zeros(NUMEL), np.zeros(NUMEL)
    for state.step, (density, momentum) in enumerate(places):
        now = draw("normal", NUMEL, "float64", state.step)
        total += now
        if rollback and state.step in failing:
            before = worlds.bits_of(state.arrays())
            step_of(state, now, density, momentum=momentum, nesterov=nesterov)
            state.roll_back()
            assert worlds.bits_of(state.arrays()) == before
        moved = step_of(state, now, density, momentum=momentum, nesterov=nesterov)
        applied += moved * (1 - momentum)  # in gradients, which the momentum of this step scales
        state.commit()
        owed = owed_by(state, momentum, nesterov) * (1 - momentum)
        np.testing.assert_allclose(applied + owed, total, rtol=1e-9, atol=1e-9)


def run_of(state, gradients, selected_in, density=0.05):
    """Return what is sent of entry 7 in each step. It is selected in the steps ``selected_in``."""
    sent = []
    for state.step, now in enumerate(gradients):
        state.tune(rate=1.0, momentum=0.9, nesterov=False)
        state.density = density
        vector = state.compensate(np.full(NUMEL, now), reference).vector
        indices = np.array([7] if state.step in selected_in else [], np.uint32)
        sent.append(send(state, Selection(indices, vector[indices], NUMEL)).values.sum())
        state.commit()
    return np.array(sent) * state.gain


@pytest.mark.parametrize("density", [0.05, 0.12, 0.9])
def test_an_entry_that_is_sent_in_every_step_moves_as_under_sgd_with_momentum(density):
    gradients, velocities = draw("normal", 60, "float64"), [0.0]
    for now in gradients:
        velocities.append(0.9 * velocities[-1] + now)
    moved = run_of(state_of(), gradients, range(60), density)
    np.testing.assert_allclose(moved, velocities[1:], rtol=1e-12)


@pytest.mark.parametrize(("waited", "part"), [(1, 0.1), (10, 1 - 0.9**10), (400, 1.0)])
def test_the_longer_an_entry_has_waited_the_more_of_it_is_sent(waited, part):
    gradients = [0.0] * 401 + [1.0]
    gradients[401 - waited] = 1e-9  # zeros are not sent
    moved = run_of(state_of(), gradients, {401 - waited, 401})
    assert moved[-1] == pytest.approx(part * 10)


def test_an_entry_whose_part_is_rounded_to_0_gets_older():
    state = state_of()
    for state.step in range(3):
        state.tune(rate=1.0, momentum=0.9, nesterov=False)
        state.density = 0.05
        state.compensate(np.ones(NUMEL), reference)
        parts = Selection(np.array([3, 7], np.uint32), np.array([0.0, 1.0]), NUMEL)
        state.update(parts, False)
        state.commit()
    assert state.arrays()["sent_in"][[3, 7]].tolist() == [-1, 2]


def test_a_dense_step_at_rate_0_keeps_the_residual():
    state = state_of()
    for state.step, (rate, density) in enumerate([(1.0, 0.05)] * 2 + [(0.0, 1.0)] * 3):
        before = state.arrays()["residual"].copy()
        step_of(state, draw("normal", NUMEL, "float64", state.step), density, rate=rate)
        state.commit()
    assert state.arrays()["residual"].tobytes() == before.tobytes()


@given(
    share=st.floats(0.0, 1.0),
    value=st.floats(-(2.0**99), 2.0**99, width=32),
    dtype=st.sampled_from("fd"),
)
def test_a_part_and_its_rest_are_exactly_the_entry(share, value, dtype):
    values = np.array([value], dtype)
    release = Release(np.zeros(1, dtype), 1, np.array([0.0, share, 1.0]))
    (part,) = release.of(Selection(np.zeros(1, np.uint32), values, 1)).values
    assert part + (values[0] - part) == values[0]
    assert abs(part) <= abs(values[0])


def test_a_state_of_an_earlier_version_releases_whole_entries():
    state, arrays = state_of(), state_of().arrays()
    arrays["residual"] = START.copy()
    state.load({name: array for name, array in arrays.items() if name != "sent_in"})
    state.step = 500
    moved = step_of(state, np.zeros(NUMEL), 0.05)
    largest = np.argmax(np.abs(START))
    assert moved[largest] == pytest.approx(10 * START[largest])


@nesterov_or_not
def test_in_float32_nothing_is_lost_if_keras_2_sets_the_momentum_to_0(nesterov):
    follower = pytest.importorskip("hvd_sparse.tensorflow.follower")
    none, spec = follower.OVERWRITTEN, TensorSpec("t", (NUMEL,), "float32")
    state = MEMORIES.create("momentum_feedback").create(spec, rollback=True)
    applied, total = np.zeros(NUMEL), np.zeros(NUMEL)
    for step, (density, momentum) in enumerate([(0.5, 0.9)] * 3 + [(1.0, none)] * 3):
        now = draw("normal", NUMEL, "float32", step)
        total += now
        moved = step_of(state, now, density, momentum=momentum, nesterov=nesterov)
        applied += moved * (1 - momentum)
        state.commit()
    np.testing.assert_allclose(applied, total, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("densities", [(0.09, 0.12), (0.05, 1.0), (0.2, 0.8)], ids=str)
def test_nothing_jumps_where_a_schedule_changes_the_density(densities):
    state, applied = state_of(), []
    for state.step in range(600):
        density = densities[state.step // 100 % 2]
        applied.append(step_of(state, np.ones(NUMEL), density).mean())
        state.commit()
    for start in range(200, 600, 10):
        assert 5 < np.mean(applied[start : start + 10]) < 20, start


@pytest.mark.parametrize("average", [True, False], ids=["average", "sum"])
@pytest.mark.parametrize("exchange", ["allgather", "gtopk", "oktopk", "shared_index"])
@pytest.mark.parametrize("density", [0.05, 0.3])
def test_ranks_together_apply_and_owe_all_gradients(density, average, exchange):
    options = {"memory": "momentum_feedback", "allow_dense": False, "exchange": exchange}
    configuration = worlds.configure("topk", density, **options)
    spec = TensorSpec("t", (20, 30), "float64")

    def given(rank, step):
        return {"t": draw("normal", 600, "float64", 100 * step + rank).reshape(20, 30)}

    outcomes = run_steps(configuration, 3, given, 12, specs=[spec], average=average)
    states = [each["session"].step.transactions.settle_all()[0] for each in outcomes]
    owed = sum(owed_by(state.memory, 0.9, False) for state in states).reshape(20, 30)
    total = sum(now["t"] for each in outcomes for now in each["given"]) / (1 - 0.9)
    scale = 3 if average else 1
    for each in outcomes:
        applied = sum(result["t"] for result in each["applied"])
        np.testing.assert_allclose(applied + owed / scale, total / scale, atol=1e-9)
    applied_now = outcomes[0]["applied"][-1]["t"].ravel() != 0
    kept = [state.memory.arrays()["residual"][applied_now] for state in states]
    assert np.count_nonzero(kept) > 0.9 * applied_now.sum()  # parts, and not whole entries


@pytest.mark.parametrize("codec", ["sign_index", "sign_mean"])
def test_signs_have_the_mean_magnitude_of_the_parts_of_entries(codec):
    memory = {"id": "momentum_feedback", "momentum": 0.5}
    configuration = worlds.configure("topk", 0.5, memory=memory, codec=codec)
    given = ([8, -4, 1, 1], [0, 0, 7, 3])
    (outcome,) = run_steps(
        configuration,
        1,
        lambda rank, step: {"t": np.array(given[step], "float32")},
        2,
        specs=[TensorSpec("t", (4,), "float32")],
    )
    # The first step sends halves of 8 and 4, with the mean 3, and keeps 5, -1, 1 and 1. The second
    # sends half of 5 and 3/4 of 8, with the mean 4.25. The optimizer gets twice as much.
    assert [each["t"].tolist() for each in outcome["applied"]] == [[6, -6, 0, 0], [8.5, 0, 8.5, 0]]
    assert outcome["kept"]["t"].tolist() == [0.75, -1, 3.75, 4]


SGD = {"rate": 1.0, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0}
ADAM = {"rate": 1.0, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-8, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("memory", "settings"),
    [
        ("momentum_feedback", (SGD, {**SGD, "momentum": 0.8})),
        ("adam_correction", ({**ADAM, "is_epsilon_hat": True}, {**ADAM, "is_epsilon_hat": False})),
        ("muon_correction", ({"rate": 1.0, "momentum": 0.9, "scale": 1.0}, ADAM)),
    ],
)
def test_ranks_whose_optimizers_differ_are_refused(memory, settings):
    configuration = worlds.configure("topk", 0.05, memory=memory)
    spec = TensorSpec("t", (20, 30), "float32")

    def program(collective):
        session = Session(configuration, [spec], collective)
        session.step.settings_of = lambda position: settings[collective.rank]
        with pytest.raises(RankMismatch, match="an optimizer with the same settings"):
            session.reduce({"t": draw("normal", 600).reshape(20, 30)})

    worlds.run(2, program)
