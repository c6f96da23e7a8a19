"""``auto``: a trial of ways, residuals that must still be sent, and step times."""

import copy
import json
from types import SimpleNamespace

import pytest
from compressors import Made

from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.compression import AutoMethod
from hvd_sparse.frontend.compressor import Compressor
from hvd_sparse.methods import Methods
from hvd_sparse.optimizer_memory import OF_SGD, Handover
from hvd_sparse.plan import policy
from hvd_sparse.plan.policy import RECENT, WARMUP, WAYS, Fallback, StepClock, Trial
from hvd_sparse.step.records import StepRun


def run(seconds, steps, ranks=3, **options):
    options = {"ways": WAYS, "steps": 5, "review_every": 0, **options}
    trials = [Trial(**options) for _ in range(ranks)]
    last, taken = [None] * ranks, []
    for step in range(steps):
        told = [what_is_told(trial, last_s) for trial, last_s in zip(trials, last)]
        asks = [one for one in told if one is not None]
        assert len(asks) in (0, ranks), "some ranks ask and others do not"
        ways = {trial.next(own, lambda _, asks=asks: asks) for trial, own in zip(trials, last)}
        assert len(ways) == 1, "ranks go different ways"
        taken.append(ways.pop())
        last = [seconds(taken[-1], step, rank) for rank in range(ranks)]
    return taken, trials


def what_is_told(trial, last_s):
    told = []
    copy.deepcopy(trial).next(last_s, lambda mine: told.append(mine) or [mine])
    return told[0] if told else None


@pytest.mark.parametrize("fastest", WAYS)
def test_the_fastest_way_of_the_slowest_rank_is_taken(fastest):
    def seconds(way, step, rank):
        return (0.1 if way == fastest else 0.15) * (1 + 0.01 * rank)

    taken, trials = run(seconds, 60)
    assert set(taken[3 * (WARMUP + 5) :]) == {fastest}
    assert trials[0].verdict.seconds[fastest] == pytest.approx(0.102)
    assert [taken.count(way) for way in WAYS if way != fastest] == [WARMUP + 5] * 2


def test_a_way_without_hope_is_given_up_after_one_measured_step():
    taken, trials = run(lambda way, *_: 0.1 if way == "sparse" else 5.0, 60)
    assert [taken.count(way) for way in WAYS[1:]] == [WARMUP + 1] * 2
    assert trials[0].verdict.way == "sparse"


def test_sparse_must_not_be_slower_and_single_slow_steps_do_not_count():
    for seconds, taken in ((0.1, "dense"), (0.092, "dense"), (0.09, "sparse")):
        times = {"sparse": seconds}
        assert run(lambda way, *_, t=times: t.get(way, 0.1), 60)[1][0].verdict.way == taken
    slow = {WARMUP + 1, WARMUP + 3}
    usual = {"sparse": 0.1, "dense": 0.12, "fp16": 0.12}
    _, trials = run(lambda way, step, _: 9.0 if step in slow else usual[way], 60)
    assert trials[0].verdict.way == "sparse"


def test_a_way_that_became_slower_is_tried_again():
    end = 3 * (WARMUP + 5)

    def seconds(way, step, rank):
        usual = {"dense": 0.1, "fp16": 0.11, "sparse": 0.2}[way]
        return usual * (10 if step > 200 and way != "sparse" else 1)

    taken, _ = run(seconds, 500, review_every=RECENT)
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"ways": ()},
        {"ways": "sparse"},
        {"ways": ("sparse", "sparse")},
        {"ways": ("int8",)},
        {"steps": 0},
        {"review_every": -1},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong):
    with pytest.raises(InvalidOption):
        Trial(**{"ways": WAYS, "steps": 5, "review_every": 0, **wrong})


@pytest.mark.parametrize("review_every", [0, 1000])
def test_a_long_run_keeps_no_more_durations_than_are_looked_at(review_every):
    _, (trial, *_) = run(lambda way, step, rank: 1.0, 900, review_every=review_every)
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


def test_a_step_lasts_to_its_last_result(now):
    clock = StepClock()
    assert clock.begin() is None
    clock.end()
    now.s += 1.0
    clock.end()
    now.s += 8.0
    assert clock.begin() == 1.0
    now.s += 2.0
    assert clock.begin() == 2.0, "nobody has said when it ended"


def test_what_held_a_step_up_is_not_its_own(now):
    clock = StepClock()
    clock.begin()
    now.s += 8.0
    clock.resume()
    now.s += 1.0
    clock.end()
    assert clock.begin() == 1.0


@pytest.mark.parametrize("ended_before", [False, True])
def test_a_step_that_failed_has_no_time_on_any_rank(ended_before):
    clock = StepClock()
    clock.begin()
    if ended_before:
        clock.end()
    clock.fail()
    assert clock.begin() is None
    clock.end()
    assert clock.begin() is not None
    clock.restart()
    assert clock.begin() is None


class Taking(Compressor):
    def take_over(self, optimizer):
        pass


class Compression(AutoMethod, Methods):
    @classmethod
    def _create(cls, params, configuration, process_set, grad_scaler, policy=None):
        return Taking(configuration, "numpy", policy)

    @classmethod
    def _read_optimizer(cls, optimizer):
        return optimizer


@pytest.mark.parametrize("method", ["auto", "topk"])
def test_from_config_needs_the_optimizer_that_the_first_compressor_had(method):
    sgd = Handover("SGD", OF_SGD)
    config = getattr(Compression, method)("p", density=0.02, optimizer=sgd).config()
    with pytest.raises(InvalidOption, match=r"with optimizer=SGD, .*give the optimizer, by opt"):
        Compression.from_config("p", config)
    again = Compression.from_config("p", json.loads(json.dumps(config)), optimizer=sgd)
    assert again.config() == config
    unknown = getattr(Compression, method)("p", density=0.02, optimizer=Handover("LAMB", ()))
    assert Compression.from_config("p", unknown.config()).config() == unknown.config()


def test_from_config_makes_a_compressor_with_the_same_trial():
    trial = {"ways": ["dense", "sparse"], "trial_steps": 7, "review_every": 0}
    config = Compression.auto("p", density=0.02, min_numel=3, **trial).config()
    assert config["trial"] == trial
    again = Compression.from_config("p", json.loads(json.dumps(config)))
    assert isinstance(again._policy, Fallback) and again.config() == config
    plain = Compression.from_config("p", Compression.topk("p", density=0.02).config())
    assert not isinstance(plain._policy, Fallback) and "trial" not in plain.config()
    with pytest.raises(InvalidOption, match=r"that of Compression\.auto.*entry 'trial'"):
        Made.from_config("p", config)
    shared = Compression.auto("p", exchange="shared_index")  # which uses no codec
    assert shared.configuration.codec.id == "index_value"
    with pytest.raises(InvalidOption, match=r"auto has density 0\.1 and a selector"):
        Compression.auto("p", density=0.1, selector={"id": "topk", "density": 0.1})
