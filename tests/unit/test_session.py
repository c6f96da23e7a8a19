"""The laws over whole runs of small worlds; loss scales, NaN and Inf; ranks that disagree."""

import itertools
import threading

import cases
import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.steps import FAULTY, SPECS, gradients
from worlds import TIMEOUT_S, configure, integers, residuals, tensors

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.errors import ExchangeTimeout, PeerFailure, RankMismatch, ReplicaMismatch
from hvd_sparse.registry import SELECTORS
from hvd_sparse.step import receiver
from hvd_sparse.step.handshake import describe_rank, handshake
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec


@st.composite
def settings_of_a_world(draw):
    shape = st.lists(st.integers(1, 7), max_size=3).map(tuple)
    shapes = draw(st.lists(shape, min_size=1, max_size=4))
    return {
        "world_size": draw(st.sampled_from([1, 2, 4, 8])),
        "specs": tensors(*shapes, dtype=draw(st.sampled_from(["float32", "float64"]))),
        "density": draw(st.sampled_from([0.01, 0.1, 0.37, 0.9, 1.0])),
        "selector": draw(st.sampled_from(cases.SELECTORS)),
        "rollback": draw(st.booleans()),
        "steps": draw(st.integers(1, 4)),
    }


@settings(max_examples=40)
@given(world=settings_of_a_world())
def test_sent_and_kept_entries_of_all_ranks_are_all_gradients_exactly(world):
    """(3) Exact for whole numbers on 2**i ranks, but where other values are sent."""
    specs, steps, size = world["specs"], world["steps"], world["world_size"]
    selector = world["selector"].create(SELECTORS, density=world["density"])
    configuration = configure(selector, rollback=world["rollback"])

    def script(collective):
        session = Session(configuration, specs, collective)
        given = (integers(specs, collective.rank, step) for step in range(steps))
        return list(map(session.reduce, given)), residuals(session)

    outcomes = worlds.run(size, script)
    for spec in specs:
        places = itertools.product(range(size), range(steps))
        given_in = sum(integers(specs, *place)[spec.key].astype(float) for place in places)
        averages = sum(reduced[spec.key].astype(float) for reduced in outcomes[0][0])
        kept = sum(left[spec.key].astype(float) for _, left in outcomes).reshape(spec.shape)
        slack = 1e-5 * size * steps * 10 if configuration.selector.changes_values else 0
        np.testing.assert_allclose(size * averages + kept, given_in, rtol=0, atol=slack)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_results_are_like_the_gradients_which_may_be_in_any_layout_and_are_left_alone(dtype):
    base = np.arange(24, dtype=dtype).reshape(4, 6)
    base.flags.writeable = False
    given = {"t0": base.T, "t1": np.array(3, dtype)}

    def script(collective):
        specs = tensors((6, 4), (), dtype=dtype)
        return Session(configure(density=1.0), specs, collective).reduce(given)

    for reduced in worlds.run(2, script):
        assert all(worlds.same_bits(reduced[key], gradient) for key, gradient in given.items())


def test_every_entry_is_sent_in_the_end():
    specs = tensors((20, 5))

    def script(collective):
        session = Session(configure(density=0.05), specs, collective)
        gradient = np.linspace(0.1, 1.0, 100, dtype=np.float32).reshape(20, 5)
        applied = sum(session.reduce({"t0": gradient})["t0"] for _ in range(2_000)) / 2_000
        np.testing.assert_allclose(applied, gradient, rtol=0.2)

    worlds.run(1, script)


BAD_STEP, STEPS = 3, 7
CONFIGURATIONS = {
    "sparse": configure("ldte_bs", 0.25, telemetry=True),
    "dense steps": configure("topk", 1.0, allow_dense=True),
    "momentum": configure(memory="momentum_correction"),
    "thresholds that are used again": configure("redsync_search", 0.2),
    "tensors that stay dense": configure(min_numel=9),
    "a lossy selector": configure("stc", 0.2),
    "warm-up": configure(
        schedule={"id": "piecewise", "boundaries": [2, 4], "densities": [1.0, 0.5, 0.2]}
    ),
}


def train(session, steps, scales=lambda step: 1.0, spoil=lambda step, given: None):
    results = []
    for step in steps:
        given = worlds.normals(SPECS, session.collective.rank, step)
        given = {key: (g * np.float32(scales(step))).astype(g.dtype) for key, g in given.items()}
        spoil(step, given)
        results.append(session.reduce(given, scales(step)))
    return results


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("tensor", ["t0", "t1", "t2"])
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_step_with_nan_or_inf_is_seen_in_one_tensor_on_all_ranks_and_leaves_no_trace(
    name, tensor, bad
):
    def script(collective):
        def spoil(step, given):
            if step == BAD_STEP and collective.rank == FAULTY:
                given[tensor].flat[2] = bad

        session = Session(CONFIGURATIONS[name], SPECS, collective)
        results = train(session, range(STEPS), spoil=spoil)
        clean = Session(CONFIGURATIONS[name], SPECS, collective)
        steps = [step for step in range(STEPS) if step != BAD_STEP]
        expected = train(clean, steps)
        assert worlds.snapshot(session) == worlds.snapshot(clean)
        assert session.step.stats.nonfinite_steps == 1
        told, wanted = (each.step.stats.report(None) for each in (session, clean))
        assert told["tensors"] == wanted["tensors"] and told["bytes_sent"] > wanted["bytes_sent"]
        seen = results.pop(BAD_STEP)
        assert {key for key, array in seen.items() if not np.isfinite(array).all()} == {tensor}
        return list(map(worlds.bits_of, results)) == list(map(worlds.bits_of, expected))

    assert worlds.run(3, script) == [True] * 3


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_residuals_are_in_unscaled_units_whatever_the_scale_and_its_changes(name):
    scales = [2.0**16, 2.0**16, 2.0**15, 1.0, 2.0**20, 2.0**-3, 2.0**16]

    def script(collective):
        scaled, plain = (Session(CONFIGURATIONS[name], SPECS, collective) for _ in range(2))
        results = train(scaled, range(STEPS), scales.__getitem__)
        expected = train(plain, range(STEPS))
        assert worlds.snapshot(scaled) == worlds.snapshot(plain)
        for scale, result, wanted in zip(scales, results, expected):
            for key in wanted:
                assert (result[key] / np.float32(scale)).tobytes() == wanted[key].tobytes()

    worlds.run(3, script)


@pytest.mark.parametrize("scale", [0.0, -1.0, np.nan, np.inf, 8.0])
def test_another_scale_or_what_is_no_scale_is_refused_on_all_ranks(scale):
    def script(collective):
        session = Session(CONFIGURATIONS["sparse"], SPECS, collective)
        session.reduce(worlds.normals(SPECS, 0), scale if collective.rank == FAULTY else 1.0)

    results = worlds.LocalWorld(2, worlds.TIMEOUT_S).run_all(script)
    assert all(isinstance(result, (PeerFailure, RankMismatch)) for result in results)
    words = "with the same options and loss scale" if scale == 8.0 else "the loss scale is"
    assert words in str(results[FAULTY])


@pytest.mark.parametrize(
    ("dtype", "average", "size", "expected", "looks"),
    [
        ("float16", False, 6e4, np.nan, 2),
        ("bfloat16", False, 6e4, 1.2e5, 0),
        ("float16", True, 4e4, 4e4, 2),
        ("float16", True, 1.0, 1.0, 0),
    ],
)
def test_what_16_bits_cannot_hold_is_nan_on_all_ranks_and_looked_for_only_near_their_limit(
    dtype, average, size, expected, looks, monkeypatch
):
    """Of four entries of 40000 the average is in range, and the bound of 80000 is not."""
    seen, own, spec = [], receiver.stays_finite, TensorSpec("half", (8, 2), dtype)
    monkeypatch.setattr(receiver, "stays_finite", lambda *given: seen.append(1) or own(*given))

    def script(collective):
        session = Session(configure(density=0.25), [spec], collective, average=average)
        result = session.reduce({"half": np.full((8, 2), size, np.float32)})
        return result["half"], worlds.residuals(session)["half"]

    for result, kept in worlds.run(2, script):
        assert np.isnan(result).all() if np.isnan(expected) else (result.max() == expected)
        assert kept.max() == (0 if np.isnan(expected) else np.float32(size))
    assert len(seen) == looks


def own(rank):
    return np.arange(rank + 1, dtype=np.float32) + 10 * rank


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
def test_allreduce_adds_in_rank_order_in_the_dtype_given(world_size):
    values = np.array([1e8, 1.0, -1e8, 3.0, 0.1, 7.0, 1e8, 2.0], np.float32)[:world_size]
    expected = np.float32(0)
    for value in values:
        expected = expected + value
    world = LocalWorld(world_size, TIMEOUT_S)
    for result in world.run(lambda c: c.allreduce(values[[c.rank]], "x").wait(TIMEOUT_S)):
        assert result.dtype == np.float32 and result.tolist() == [expected]


def test_what_was_submitted_may_be_overwritten_afterwards():
    def script(collective):
        array = own(collective.rank)
        pending = collective.allgather(array, "x")
        array[:] = -1
        return pending.wait(TIMEOUT_S).tolist()

    assert LocalWorld(2, TIMEOUT_S).run(script) == [[0.0, 10.0, 11.0]] * 2


@pytest.mark.parametrize("limit_s", [0.1, None], ids=["of the wait", "of the world"])
def test_a_rank_that_does_not_come_is_named_at_the_limit(limit_s):
    world = LocalWorld(3, TIMEOUT_S)
    first, _, last = world.run(lambda c: c)
    pending = [each.allgather(own(0), "x") for each in (first, last)]
    world.timeout_s = TIMEOUT_S if limit_s else 0.1
    words = r"'allgather.x' did not finish in 0.1 s: ranks \[1\] did not submit it"
    for each in pending:
        with pytest.raises(ExchangeTimeout, match=words):
            each.wait(limit_s)


def test_a_name_that_is_under_way_is_not_submitted_twice():
    first, _ = LocalWorld(2, TIMEOUT_S).run(lambda c: c)
    first.allgather(own(0), "x")
    with pytest.raises(RankMismatch, match=r"submits 'allgather.x' twice"):
        first.allgather(own(0), "x")


def test_a_rank_that_hangs_does_not_hang_a_run():
    is_over = threading.Event()
    (result,) = LocalWorld(1, 0.1).run_all(lambda c: is_over.wait())
    is_over.set()
    assert isinstance(result, ExchangeTimeout)


MODEL = tensors((4, 3), (5,))
HEAD = TensorSpec("head", (4, 3), "float32")


def document(configuration=None, specs=MODEL, name="model", **changes):
    return {**describe_rank(configuration or configure(), specs, name), **changes}


def shake(world, odd_one_out):
    def script(collective):
        is_odd = collective.rank == collective.world_size - 1
        own = odd_one_out if is_odd else document()
        handshake(own, Gatherer(collective, "hs", worlds.TIMEOUT_S))

    return world.run_all(script)


DIFFERENCES = {
    "another density": (document(configure(density=0.5)), '"density": 0.5'),
    "an extra tensor": (document(specs=tensors((4, 3), (5,), (2, 2))), "t2 [2, 2] float32"),
    "a tensor less": (document(specs=tensors((4, 3))), "t1 [5] float32"),
    "another shape": (document(specs=tensors((4, 4), (5,))), "t0 [4, 4] float32"),
    "another dtype": (document(specs=tensors((4, 3), (5,), dtype="float64")), "t0 [4, 3] float64"),
    "another name of a tensor": (document(specs=[HEAD, MODEL[1]]), "head [4, 3]"),
    "another order of tensors": (document(specs=MODEL[::-1]), "t1 [5] float32"),
    "another version": (document(version="9.9.9"), '"version": "9.9.9"'),
    "another name": (document(name="generator"), '"name": "generator"'),
    "other nodes of the ranks": (document(nodes=[0, 1]), '"nodes": "[0, 1]"'),
}


@pytest.mark.parametrize("what", DIFFERENCES)
@pytest.mark.parametrize("world_size", [2, 3])
def test_a_difference_is_named_on_every_rank(what, world_size):
    odd_one_out, words = DIFFERENCES[what]
    errors = shake(LocalWorld(world_size, worlds.TIMEOUT_S), odd_one_out)
    assert [type(error) for error in errors] == [RankMismatch] * world_size
    assert len({str(error) for error in errors}) == 1
    assert words in str(errors[0])
    assert f"rank {world_size - 1}" in str(errors[0])
    assert "on every rank" in str(errors[0])


def test_a_long_list_of_differences_is_cut_and_says_so():
    many = document(specs=tensors(*[(i + 1, 2) for i in range(100)]))
    errors = shake(LocalWorld(2, worlds.TIMEOUT_S), many)
    assert "more" in str(errors[0])
    assert len(str(errors[0])) < 2_000


def break_memory(session, position):
    receiver = session.step
    finish = receiver._finish

    def faulty(ticket, reduced, *others, **options):
        if ticket.position == position:
            reduced.view(np.uint32)[2] ^= 1
        return finish(ticket, reduced, *others, **options)

    receiver._finish = faulty


@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("broken", [0, 1, 2])
def test_one_flipped_bit_is_found_after_the_next_checked_step_and_the_tensor_named(
    broken, world_size
):
    def script(collective):
        session = Session(configure(check_replicas_every=3), SPECS, collective)
        session.reduce(gradients(collective, 0))
        if collective.rank == FAULTY:
            break_memory(session, broken)
        for step in (1, 2):
            session.reduce(gradients(collective, step))
        words = f"tensor 't{broken}': the gradients applied in the last checked step"
        with pytest.raises(ReplicaMismatch, match=words):
            session.reduce(gradients(collective, 3))

    worlds.run(world_size, script)


def test_a_step_that_is_taken_back_is_not_checked():
    def script(collective):
        session = Session(configure(check_replicas_every=1), SPECS, collective)
        for step in range(6):
            given = gradients(collective, step)
            if step % 2 and collective.rank == FAULTY:
                given["t1"][3] = np.nan
            session.reduce(given)
        return session.step.stats.nonfinite_steps

    assert worlds.run(3, script) == [3] * 3
