"""A trial of ways: which it takes, when it gives one up, and that all ranks decide alike."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.policy import RECENT, WARMUP, WAYS, Trial


def run(seconds, steps, ranks=3, **options):
    """The ways of all steps and the trials; ``seconds(way, step, rank)`` is what a rank needs for a
    step."""
    trials = [
        Trial(**{"ways": WAYS, "steps": 5, "review_every": 0, **options}) for _ in range(ranks)
    ]
    last, taken = [None] * ranks, []
    for step in range(steps):
        told = [
            what_is_told(trial, seconds_of_last) for trial, seconds_of_last in zip(trials, last)
        ]
        asks = [one for one in told if one is not None]
        assert len(asks) in (0, ranks), "some ranks ask and others do not"
        answer = np.array(asks)
        ways = {
            trial.next(own, lambda _, answer=answer: answer) for trial, own in zip(trials, last)
        }
        assert len(ways) == 1, "ranks go different ways"
        taken.append(ways.pop())
        last = [seconds(taken[-1], step, rank) for rank in range(ranks)]
    return taken, trials


def what_is_told(trial, last_s):
    """What a rank will give to the gather; None if it will not ask."""
    told = []
    copy.deepcopy(trial).next(last_s, lambda mine: told.append(mine) or mine[None])
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
    assert run(lambda way, step, _: 0.1, 60)[1][0].verdict.way == "dense"
    assert (
        run(lambda way, step, _: 0.092 if way == "sparse" else 0.1, 60)[1][0].verdict.way == "dense"
    )
    assert (
        run(lambda way, step, _: 0.09 if way == "sparse" else 0.1, 60)[1][0].verdict.way == "sparse"
    )
    slow = {WARMUP + 1, WARMUP + 3}
    _, trials = run(
        lambda way, step, _: 9.0 if step in slow else {"sparse": 0.1}.get(way, 0.12), 60
    )
    assert trials[0].verdict.way == "sparse"


def test_a_way_that_became_slower_is_tried_again():
    end = 3 * (WARMUP + 5)

    def seconds(way, step, rank):
        network_is_slow = step > 200
        return {"dense": 0.1, "fp16": 0.11, "sparse": 0.2}[way] * (
            10 if network_is_slow and way != "sparse" else 1
        )

    taken, _ = run(seconds, 500, review_every=RECENT)
    assert set(taken[end:200]) == {"dense"}
    assert set(taken[-50:]) == {"sparse"}


def test_a_way_that_stays_is_not_tried_again():
    taken, _ = run(lambda way, *_: {"sparse": 0.1}.get(way, 0.2), 500, review_every=20)
    assert set(taken[3 * (WARMUP + 5) :]) == {"sparse"}


def test_only_steps_whose_time_will_be_looked_at_are_timed():
    trial = Trial(("sparse",), steps=5, review_every=4 * RECENT)
    timed = []
    for _ in range(WARMUP + 5 + 8 * RECENT):
        trial.next(None if not timed else 0.1, lambda mine: mine[None])
        timed.append(trial.is_timed)
    since = timed[WARMUP + 5 :]
    assert all(timed[: WARMUP + 5])
    assert [i for i, is_timed in enumerate(since) if is_timed] == [
        *range(3 * RECENT, 4 * RECENT),
        *range(7 * RECENT, 8 * RECENT),
    ]
    never = Trial(("sparse",), steps=1, review_every=0)
    for _ in range(WARMUP + 2):
        never.next(0.1, lambda mine: mine[None])
    assert never.verdict is not None and not never.is_timed


def test_the_verdict_says_it_in_words():
    _, trials = run(lambda way, *_: {"sparse": 0.2, "dense": 0.15, "fp16": 0.1}[way], 60)
    words = str(trials[0].verdict)
    assert words.startswith("compression does not pay here: gradients are sent dense, as float16")
    assert "sparse 200.0 ms, dense 150.0 ms, fp16 100.0 ms" in words


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
