"""A rank that is paused, hangs, ends, throws or joins: the others say so, and end.

Whoever hangs here does so for longer than a launch may take."""

import re

import pytest
from harness import launch


def in_soak(*faults):
    """Return these faults under both controllers, which only the longest run takes."""
    return [
        pytest.param(framework, fault, 2, controller, marks=pytest.mark.soak)
        for framework in ("torch", "tensorflow")
        for fault in faults
        for controller in ("mpi", "gloo")
    ]


def of_faults(*cases):
    return pytest.mark.parametrize(("framework", "fault", "ranks", "controller"), cases)


SILENCE = "does not answer: it has ended, its process or host is paused, or one of its threads"
REASONS = {
    "stopped": SILENCE,
    "locked": SILENCE,
    "asleep": r"has not submitted them: it is at \S*hangs.py",
}


def fail(framework, fault, ranks, controller):
    outcome = launch("frontends/hangs.py", ranks, controller, framework, fault)
    assert outcome.results == ["here"] * ranks, outcome.end
    assert outcome.code not in (0, None), outcome.end
    return outcome


@of_faults(
    ("torch", "stopped", 3, "mpi"),
    ("torch", "asleep", 2, "gloo"),
    ("torch", "locked", 2, "mpi"),
    ("tensorflow", "stopped", 2, "gloo"),
    ("tensorflow", "asleep", 2, "mpi"),
    *in_soak("stopped", "asleep", "locked"),
)
def test_who_keeps_the_others_waiting_is_named_and_the_job_ends(
    framework, fault, ranks, controller
):
    output = fail(framework, fault, ranks, controller).output
    said = re.findall(r"ExchangeTimeout: rank (\d) waits for (.*?) since \d+ s; (.*)", output)
    assert said, output
    assert {int(rank) for rank, _, _ in said} <= set(range(ranks - 1))
    for _, tensors, reason in said:
        assert re.match(r"(wide|bias|deep)(:0)?(, |$)", tensors)
        assert re.search(f"rank {ranks - 1} {REASONS[fault]}", reason)


@of_faults(
    ("torch", "locked_a_while", 3, "mpi"),
    ("torch", "suspended", 2, "gloo"),
    ("tensorflow", "locked_a_while", 2, "gloo"),
    *in_soak("locked_a_while", "suspended"),
)
def test_a_rank_that_holds_pythons_lock_or_a_job_that_was_suspended_goes_on(
    framework, fault, ranks, controller
):
    outcome = launch("frontends/hangs.py", ranks, controller, framework, fault)
    assert outcome.check() == [6] * ranks


@of_faults(("torch", "joins", 2, "gloo"), *in_soak("joins"))
def test_join_is_refused_with_the_reason(framework, fault, ranks, controller):
    outcome = fail(framework, fault, ranks, controller)
    assert "hvd.join() cannot be used with hvd_sparse" in outcome.output


def test_a_rank_that_saves_alone_is_named_and_names_the_others():
    output = fail("torch", "saves", 2, "mpi").output
    states = "the states that save() gathers from all ranks"
    assert re.search(rf"rank 1 waits for {re.escape(states)} since \d+ s; rank 0 has not", output)
    # Where in the program it is: in save(), called by this line.
    named = r"rank 0 waits for .*; rank 1 has not submitted .*, called by \S*hangs.py:\d+ \(train\)"
    assert re.search(named, output)


@of_faults(
    ("torch", "throws", 2, "mpi"),
    ("torch", "crashes", 2, "gloo"),
    *in_soak("throws", "killed", "crashes"),
)
def test_a_rank_that_ends_ends_the_job(framework, fault, ranks, controller):
    outcome = fail(framework, fault, ranks, controller)
    if fault == "crashes":
        assert re.search(
            r"stacks of 1\.\d+\n.*Segmentation fault.*in crashes", outcome.stacks, re.S
        )
    # The watchdog may be first on a busy machine.
    words = ("HorovodInternalError", "UnknownError", "ExchangeTimeout")
    assert any(word in outcome.output for word in words) or fault in ("killed", "crashes")


def test_horovods_shutdown_does_not_stop_a_rank_that_submits_tensors():
    outcome = launch("frontends/hangs.py", 2, "mpi", "torch", "shuts_down")
    error, nothing = outcome.check()
    assert error.startswith("HorovodInternalError"), error
    assert nothing == "nothing was raised"
