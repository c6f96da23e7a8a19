"""``auto``: a trial of ways, residuals that must still be sent, and step times."""

import json
from types import SimpleNamespace

import pytest
import worlds
from compressors import Auto, Made

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.errors import InvalidOption
from hvd_sparse.optimizer_memory import OF_SGD, Handover
from hvd_sparse.plan import policy
from hvd_sparse.plan.policy import RECENT, WARMUP, WAYS, Fallback, StepClock, Trial
from hvd_sparse.step.records import StepRun


def run(seconds, steps, review_every=0):
    def script(collective):
        trial, last_s, taken = Trial(WAYS, 5, review_every), None, []
        gatherer = Gatherer(collective, "trial", worlds.TIMEOUT_S)
        for step in range(steps):
            taken.append(trial.next(last_s, gatherer.tell_all))
            last_s = seconds(taken[-1], step, collective.rank)
        return taken, trial

    first, *others = worlds.run(3, script)
    assert all(taken == first[0] for taken, _ in others), "ranks go different ways"
    return first


@pytest.mark.parametrize("fastest", WAYS)
def test_the_fastest_way_of_the_slowest_rank_is_taken(fastest):
    def seconds(way, step, rank):
        return (0.1 if way == fastest else 0.15) * (1 + 0.01 * rank)

    taken, trial = run(seconds, 60)
    assert set(taken[3 * (WARMUP + 5) :]) == {fastest}
    assert trial.verdict.seconds[fastest] == pytest.approx(0.102)
    assert [taken.count(way) for way in WAYS if way != fastest] == [WARMUP + 5] * 2


def test_a_way_without_hope_is_given_up_after_one_measured_step():
    taken, trial = run(lambda way, *_: 0.1 if way == "sparse" else 5.0, 60)
    assert [taken.count(way) for way in WAYS[1:]] == [WARMUP + 1] * 2
    assert trial.verdict.way == "sparse"


def test_sparse_must_not_be_slower_and_single_slow_steps_do_not_count():
    for seconds, taken in ((0.1, "dense"), (0.092, "dense"), (0.09, "sparse")):
        times = {"sparse": seconds}
        assert run(lambda way, *_, t=times: t.get(way, 0.1), 60)[1].verdict.way == taken
    slow = {WARMUP + 1, WARMUP + 3}
    usual = {"sparse": 0.1, "dense": 0.12, "fp16": 0.12}
    _, trial = run(lambda way, step, _: 9.0 if step in slow else usual[way], 60)
    assert trial.verdict.way == "sparse"


def test_a_way_that_became_slower_is_tried_again():
    end = 3 * (WARMUP + 5)

    def seconds(way, step, rank):
        usual = {"dense": 0.1, "fp16": 0.11, "sparse": 0.2}[way]
        return usual * (10 if step > 200 and way != "sparse" else 1)

    taken, _ = run(seconds, 500, RECENT)
    assert set(taken[end:200]) == {"dense"}
    assert set(taken[-50:]) == {"sparse"}


def test_only_steps_whose_time_will_be_looked_at_are_timed():
    trial = Trial(("sparse",), steps=5, review_every=4 * RECENT)
    timed = []
    for _ in range(WARMUP + 5 + 8 * RECENT):
        trial.next(None if not timed else 0.1, lambda mine: [mine])
        timed.append(trial.is_timed)
    since = timed[WARMUP + 5 :]
    assert all(timed[: WARMUP + 5])
    looked_at = [*range(3 * RECENT, 4 * RECENT), *range(7 * RECENT, 8 * RECENT)]
    assert [i for i, is_timed in enumerate(since) if is_timed] == looked_at
    never = Trial(("sparse",), steps=1, review_every=0)
    for _ in range(WARMUP + 2):
        never.next(0.1, lambda mine: [mine])
    assert never.verdict is not None and not never.is_timed


def test_options_that_make_no_sense_are_refused():
    wrong = [(ways, 5, 0) for ways in ((), "sparse", ("sparse", "sparse"), ("int8",))]
    for options in (*wrong, (WAYS, 0, 0), (WAYS, 5, -1)):
        with pytest.raises(InvalidOption):
            Trial(*options)


@pytest.mark.parametrize("review_every", [0, 1000])
def test_a_long_run_keeps_no_more_durations_than_are_looked_at(review_every):
    _, trial = run(lambda way, step, rank: 1.0, 900, review_every)
    assert len(trial._durations) <= max(RECENT, WARMUP + 5)


def good_run(*positions):
    return StepRun(completed=set(positions))


def fallback(run=None):
    made = Fallback(Trial(WAYS, 5, 0))
    made.owed[3] = run
    return made


def test_a_debt_is_paid_only_by_a_step_that_was_completed_and_found_good():
    assert fallback(good_run(3)).is_paid(3)
    assert not fallback(good_run(3)).is_paid(4), "nothing is owed"
    spoilt = StepRun(completed={3}, nonfinite={3})
    failed = StepRun(completed={3}, failure=RuntimeError("taken back"))
    for run in (None, StepRun(), good_run(4), spoilt, failed):
        assert not fallback(run).is_paid(3)


def test_what_was_under_way_in_another_world_is_owed_again():
    made = fallback(good_run(3))
    made.forget_world(None)
    assert made.owed == {3: None} and not made.is_paid(3)


@pytest.fixture
def now(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(policy, "time", SimpleNamespace(perf_counter=lambda: now.s))
    return now


def test_a_step_lasts_to_its_last_result_without_what_held_it_up(now):
    clock = StepClock()
    assert clock.begin() is None
    clock.end()
    now.s += 1.0
    clock.end()
    now.s += 8.0
    assert clock.begin() == 1.0
    now.s += 2.0
    assert clock.begin() == 2.0, "nobody has said when it ended"
    now.s += 8.0
    clock.resume()
    now.s += 4.0
    assert clock.begin() == 4.0


@pytest.mark.parametrize("ended_before", [False, True])
def test_a_step_that_failed_has_no_time_on_any_rank(ended_before):
    clock = StepClock()
    clock.begin()
    if ended_before:
        clock.end()
    clock.drop()
    assert clock.begin() is None
    clock.end()
    assert clock.begin() is not None
    clock.drop()
    assert clock.begin() is None


@pytest.mark.parametrize("method", ["auto", "topk"])
def test_from_config_needs_the_optimizer_that_the_first_compressor_had(method):
    sgd = Handover("SGD", OF_SGD)
    config = getattr(Auto, method)("p", density=0.02, optimizer=sgd).config()
    with pytest.raises(InvalidOption, match=r"with optimizer=SGD, .*give the optimizer, by opt"):
        Auto.from_config("p", config)
    again = Auto.from_config("p", json.loads(json.dumps(config)), optimizer=sgd)
    assert again.config() == config
    unknown = getattr(Auto, method)("p", density=0.02, optimizer=Handover("LAMB", ()))
    assert Auto.from_config("p", unknown.config()).config() == unknown.config()


def test_from_config_makes_a_compressor_with_the_same_trial():
    trial = {"ways": ["dense", "sparse"], "trial_steps": 7, "review_every": 0}
    config = Auto.auto("p", density=0.02, min_numel=3, **trial).config()
    assert config["trial"] == trial
    again = Auto.from_config("p", json.loads(json.dumps(config)))
    assert isinstance(again._policy, Fallback) and again.config() == config
    plain = Auto.from_config("p", Auto.topk("p", density=0.02).config())
    assert not isinstance(plain._policy, Fallback) and "trial" not in plain.config()
    with pytest.raises(InvalidOption, match=r"that of Compression\.auto.*entry 'trial'"):
        Made.from_config("p", config)
    shared = Auto.auto("p", exchange="shared_index")  # which uses no codec
    assert shared.configuration.codec.id == "index_value"
    with pytest.raises(InvalidOption, match=r"auto has density 0\.1 and a selector"):
        Auto.auto("p", density=0.1, selector={"id": "topk", "density": 0.1})
