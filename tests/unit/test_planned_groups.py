"""Measuring the first steps, and what all ranks make of it."""

from dataclasses import asdict
from types import SimpleNamespace

import numpy as np
import pytest
import worlds
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.timings import adopted, begin_step, measure, samples, told

from hvd_sparse.errors import InvalidOption, PeerFailure
from hvd_sparse.kernels import reference
from hvd_sparse.plan import decisions, measuring
from hvd_sparse.plan.costs import Costs
from hvd_sparse.plan.decisions import GroupPlan
from hvd_sparse.plan.measuring import (
    REVIEW_EVERY,
    SETTLING,
    STEPS,
    WARMUP,
    WINDOW,
    GraphPlannedGroups,
    Measurements,
    PlannedGroups,
)
from hvd_sparse.plan.policy import StepClock
from hvd_sparse.step.buckets import grouped, one_per_tensor
from hvd_sparse.step.group_selection import name_of
from hvd_sparse.step.session import Session
from hvd_sparse.step.stats import BYTES
from hvd_sparse.step.step import Step
from hvd_sparse.tracing import Span
from hvd_sparse.types import TensorSpec
from hvd_sparse.wire.frame import HEADER_BYTES

SPECS = worlds.tensors((40, 3), (7, 9), (300, 2), (5, 5), (64, 8), (9, 9), (6,))
CONFIGURATION = worlds.configure(groups="planned", compress_1d=False)
DEFAULT = grouped(SPECS, CONFIGURATION)
COMPRESSED = sorted(position for (position,) in one_per_tensor(SPECS, CONFIGURATION))


def make_plan(*measured):
    return GroupPlan.make(Costs(*measured))


def planned_with(wires, seen=None, gap_s=0.01):
    seen = {spec.key: [3, 4, 5] for spec in SPECS} if seen is None else seen
    times, each = [samples(*wire) for wire in wires], told(SPECS, seen, gap_s)
    return make_plan(CONFIGURATION, SPECS, [each] * len(wires), times, DEFAULT)


def test_of_plans_that_differ_by_rounding_the_one_with_fewest_messages_is_chosen(monkeypatch):
    def almost_equal(instance, parts):
        return 1.0 - 1e-15 * len(parts)

    monkeypatch.setattr(decisions, "partition_end_s", almost_equal)
    assert len(planned_with([(1e-3, 1e-9)]).groups) == 1


def test_a_step_begins_with_the_first_gradient_after_a_result_or_with_one_that_comes_twice():
    starts = StepClock()
    assert [starts.begins(position) for position in (3, 2, 1)] == [True, False, False]
    assert starts.begins(2), "it came twice: the step before was given up"
    assert not starts.begins(3)
    starts.request()
    starts.request()
    assert [starts.begins(position) for position in (1, 2)] == [True, False]
    starts.request()
    begun = [starts.begins(position) for position in (None, None, 1, None)]
    assert begun == [True, False, False, False]


def test_our_own_work_is_no_part_of_the_backward_pass_and_failed_steps_do_not_count():
    mine = Measurements()
    delays = [(0.5, True), (0.7, True), (9.0, False), (0.6, True)]
    for step, (delay_s, is_good) in enumerate(delays):
        now_s = 100.0 * (step + 1)
        mine.begin(now_s, was_good=False)
        mine.arrive("b", now_s)
        mine.listen(Span("select", ("b",), now_s, now_s + 2.0, None))
        mine.listen(Span("encode", ("b",), now_s + 2.0, now_s + 3.0, None))
        mine.listen(Span("exchange", ("b",), now_s, now_s + 50.0, 0))
        mine.send("b", 10.0 * delay_s)
        mine.spend(4.0)
        mine.arrive("a", now_s + 4.0 + delay_s)
        mine.end(now_s + 5.0)
        mine.end(now_s + 10.0 * delay_s)
        mine.begin(0.0, was_good=is_good)
    found = mine.to_dict()
    assert found["ready"] == {"b": 0.0, "a": pytest.approx(0.6)}
    told = [found[name] for name in ("work", "encode", "nbytes", "decode", "steps")]
    assert told == [{"b": 3.0}, {"b": 1.0}, {"b": 6.0}, {}, 3]
    assert sorted(found["whole"].values()) == pytest.approx([5.0, 6.0, 7.0])
    assert found["seen"]["a"] == found["seen"]["b"] and len(found["seen"]["a"]) == 3


def test_dear_starts_merge_and_dear_bytes_do_not():
    assert len(planned_with([(10.0, 0.0)]).groups) == 1
    dear_bytes = planned_with([(0.0, 1e-5)], gap_s=0.5)
    assert dear_bytes.groups[-1] == ("t0",), "who waits for the last one makes the step longer"
    assert dear_bytes.predicted_s["planned"] < dear_bytes.predicted_s["all"]


def test_the_slowest_rank_and_the_typical_message_count():
    for start_s, byte_s in ((1e-3, 1e-8), (5e-3, 4e-8)):
        wire = planned_with([(1e-3, 1e-8), (start_s, byte_s)]).wire
        assert (wire.start_s, wire.byte_s) == pytest.approx((start_s, byte_s), rel=1e-3)
    noisy = samples(1e-3, 1e-8)
    for _, times in noisy:
        times[1] += 0.3
    seen = {spec.key: [3] for spec in SPECS}
    typical = make_plan(CONFIGURATION, SPECS, [told(SPECS, seen)], [noisy], DEFAULT)
    assert typical.wire == planned_with([(1e-3, 1e-8)]).wire


@pytest.mark.parametrize("exchange", ["gtopk", "oktopk", "shared_index", "hierarchical", "auto"])
def test_collectives_after_the_backward_pass_are_not_planned(exchange):
    with pytest.raises(InvalidOption, match="use exchange='allgather'"):
        worlds.configure(groups="planned", exchange=exchange)


steps_of = st.lists(st.sampled_from([(), (3, 5), (4, 6)]), min_size=len(SPECS), max_size=len(SPECS))


@settings(max_examples=60, deadline=None)
@given(steps_of, st.floats(0, 0.1), st.floats(0, 1e-4), st.floats(0, 0.05))
def test_a_plan_has_all_tensors_once_mixes_no_optimizers_and_is_quickest(
    steps, start_s, byte_s, gap_s
):
    seen = {spec.key: list(numbers) for spec, numbers in zip(SPECS, steps) if numbers}
    plan = planned_with([(start_s, byte_s)], seen, gap_s)
    assert sorted(position for bucket in plan.buckets(SPECS) for position in bucket) == COMPRESSED
    for names in plan.groups:
        assert len({tuple(seen.get(name, ())) for name in names}) == 1
    assert plan.predicted_s["planned"] <= min(plan.predicted_s.values()) * (1 + 1e-9)
    assert GroupPlan.from_dict(asdict(plan)) == plan


KEYS = [spec.key for spec in SPECS]


def policy():
    return PlannedGroups(Step(CONFIGURATION, SPECS, DEFAULT, reference), "test")


def test_graphs_are_traced_again_when_a_plan_is_made_and_when_the_ranks_have_changed():
    policy = GraphPlannedGroups(Step(CONFIGURATION, SPECS, DEFAULT, reference), "test")
    owner = SimpleNamespace(configuration=CONFIGURATION, messenger=None)
    assert not policy.replan(owner)
    policy.decision, policy.is_over = planned_with([(10.0, 0.0)]), True
    assert [policy.replan(owner), policy.replan(owner)] == [True, False]
    policy.forget_world(owner)
    assert [policy.replan(owner), policy.replan(owner)] == [True, False]


@pytest.mark.parametrize("world_size", [0, 2])
def test_a_worker_that_joins_a_run_of_tensorflow_counts_steps_as_the_others_do(world_size):
    """From the first call on, although its graph has had no gradient."""
    frontend = pytest.importorskip("hvd_sparse.tensorflow.compressor", exc_type=ImportError)
    policy = GraphPlannedGroups(Step(CONFIGURATION, SPECS, DEFAULT, reference), "test")
    policy._step.meet(0, world_size)
    owner = SimpleNamespace(
        configuration=CONFIGURATION, messenger=None, step=policy._step, _policy=policy,
        _has_shaken_hands=False,
    )  # fmt: skip
    assert not frontend.TensorflowCompressor.replan(owner)
    assert policy._steps == (world_size > 0)


def test_the_bytes_of_a_step_are_those_of_the_frames_that_its_buckets_made():
    def script(collective):
        session, runs = Session(CONFIGURATION, SPECS, collective), []
        session.step.transactions.on_begin = runs.append
        planning = PlannedGroups(session.step, "test")
        rng = np.random.default_rng(collective.rank)
        session.reduce({spec.key: rng.normal(size=spec.shape).astype("float32") for spec in SPECS})
        planning._note_bytes(runs[-1])
        found = dict(planning.measurements._step["nbytes"])
        frames = {key: counts[BYTES] for key, counts in session.step.stats.tensors.items()}
        session.step.transactions.reset()  # as a state does that is loaded
        planning._note_bytes(runs[-1])
        return found, frames, dict(planning.measurements._step["nbytes"])

    for found, frames, expected in worlds.run(2, script):
        assert found == frames and len(found) == len(COMPRESSED)
        assert expected == {k: n - HEADER_BYTES for k, n in frames.items()}


def test_where_steps_fail_ranks_measure_on():
    failing = [True] * WARMUP + [False, False, False, True, False] + [True] * 20
    results = adopted(policy, KEYS, 2, failing)
    assert results[0] == results[1] and results[0][0] == WARMUP + 2 * STEPS


def test_what_goes_wrong_on_rank_0_is_told_to_all_ranks(monkeypatch):
    def make(costs):
        raise InvalidOption("no plan")

    monkeypatch.setattr(GroupPlan, "make", make)

    def script(collective):
        planning = policy()
        for step in range(WARMUP + STEPS):
            begin_step(planning, collective, was_good=step > 0)
            measure(planning, KEYS, collective.rank)
        with pytest.raises(PeerFailure, match=r"rank 0 could not .*: InvalidOption: no plan"):
            begin_step(planning, collective, was_good=True)
        return planning.decision

    assert worlds.run(2, script) == [None, None]


MERGED = worlds.configure(groups="planned", compress_1d=False, select_over="group")


def test_dear_selections_merge_where_a_group_is_selected_from_at_once():
    two = [tuple(COMPRESSED[:2]), tuple(COMPRESSED[2:])]
    found = told(SPECS, {spec.key: [3, 4, 5] for spec in SPECS}, 0.0)
    found["encode"] = {SPECS[position].key: 0.0 for position in COMPRESSED}
    entries = [sum(SPECS[position].numel for position in bucket) for bucket in two]
    names = [name_of([SPECS[position] for position in bucket]) for bucket in two]
    found["work"] = {name: 0.02 + 1e-6 * numel for name, numel in zip(names, entries)}
    plan = make_plan(MERGED, SPECS, [found], [samples(0.0, 1e-9)], two)
    assert (plan.work.start_s, plan.work.byte_s) == (pytest.approx(0.02), pytest.approx(1e-6))
    assert len(plan.groups) == 1, "messages start for nothing, and selections do not"
    assert plan.predicted_s["none"] - plan.predicted_s["all"] > 0.02 * (len(COMPRESSED) - 2)
    each = told(SPECS, {spec.key: [3] for spec in SPECS}, 0.0)
    apart = make_plan(CONFIGURATION, SPECS, [each], [samples(0.0, 1e-9)], two)
    assert apart.predicted_s["none"] < 0.02, "tensor by tensor, no group saves a start"


def test_tensors_that_no_vector_holds_together_are_planned_apart():
    dtypes = {spec.key: ("float32", "float64")[number % 2] for number, spec in enumerate(SPECS)}
    mixed = [TensorSpec(spec.key, spec.shape, dtypes[spec.key]) for spec in SPECS]
    default = grouped(mixed, MERGED)
    each = told(SPECS, {spec.key: [3] for spec in mixed})
    plan = make_plan(MERGED, mixed, [each], [samples(10.0, 0.0)], default)
    assert len(plan.groups) == 2, "starts are dear: as few as can be"
    assert all(len({dtypes[name] for name in names}) == 1 for names in plan.groups)


def test_steps_are_measured_again_when_they_take_much_longer_or_shorter_than_at_first(monkeypatch):
    told, first = [], SETTLING + WINDOW
    monkeypatch.setattr(measuring, "tell_all", lambda *whom: told.append(step + 1) or [whom[-1]])
    for later_s, has_departed in ((0.1, False), (0.149, False), (0.16, True), (0.06, True)):
        planning = policy()
        planning.decision, planning.is_over = planned_with([(10.0, 0.0)]), True
        told.clear()
        for step in range(first + 2 * REVIEW_EVERY):
            last_s = None if step == 0 else 0.1 if step < first else later_s
            planning.clock.begin = lambda last_s=last_s: last_s
            planning.begin(SimpleNamespace(name="test", collective=SimpleNamespace(rank=0)), 0)
            planning.requested()
            if not planning.is_over:
                break
        reviews = 1 if has_departed else 2
        assert told == [first + late * REVIEW_EVERY for late in range(1 + reviews)]
        assert planning.is_over != has_departed
