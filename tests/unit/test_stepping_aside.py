"""``Compression.auto`` in both frontends: residuals that must still be sent, and step times."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hvd_sparse.plan import measurements
from hvd_sparse.plan.measurements import StepClock
from hvd_sparse.plan.policy import WAYS, Fallback, Trial
from hvd_sparse.step.records import StepRun


def good_run(*positions):
    return StepRun(completed=set(positions))


def fallback(run=None):
    made = Fallback(Trial(WAYS, 5, 0))
    made.owed[3] = run
    return made


def test_a_debt_is_paid_by_a_step_that_was_completed_and_found_good():
    assert fallback(good_run(3)).is_paid(3)
    assert not fallback(good_run(3)).is_paid(4), "nothing is owed"


@pytest.mark.parametrize(
    "run",
    [
        None,
        StepRun(),
        good_run(4),
        StepRun(completed={3}, is_finite=False),
        StepRun(completed={3}, failure=RuntimeError("taken back")),
    ],
)
def test_a_step_that_did_not_end_well_pays_nothing(run):
    assert not fallback(run).is_paid(3)


def test_what_was_under_way_in_another_world_is_owed_again():
    made = fallback(good_run(3))
    made.forget_world(None)
    assert made.owed == {3: None} and not made.is_paid(3)


@pytest.fixture
def now(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(measurements, "time", SimpleNamespace(perf_counter=lambda: now.s))
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
    """Some ranks had results of it, and others had none."""
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
