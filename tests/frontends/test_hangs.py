"""A rank that is paused, hangs, ends, throws or joins: the others say so, and end.

Whoever hangs here does so for longer than a launch may take."""

import re

import pytest
from harness import launch

HANGS = [
    ("torch", "stopped", 3, "mpi"),
    ("torch", "asleep", 2, "gloo"),
    ("torch", "locked", 2, "mpi"),
    ("tensorflow", "stopped", 2, "gloo"),
    ("tensorflow", "asleep", 2, "mpi"),
]
MORE_HANGS = [
    (framework, fault, 2, controller)
    for framework in ("torch", "tensorflow")
    for fault in ("stopped", "asleep", "locked")
    for controller in ("mpi", "gloo")
]
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


def check_hang(framework, fault, ranks, controller):
    output = fail(framework, fault, ranks, controller).output
    said = re.findall(r"ExchangeTimeout: rank (\d) waits for (.*?) since \d+ s; (.*)", output)
    assert said, output
    assert {int(rank) for rank, _, _ in said} <= set(range(ranks - 1))
    for _, tensors, reason in said:
        assert re.match(r"(wide|bias|deep)(:0)?(, |$)", tensors)
        assert re.search(f"rank {ranks - 1} {REASONS[fault]}", reason)


@pytest.mark.parametrize(("framework", "fault", "ranks", "controller"), HANGS)
def test_who_keeps_the_others_waiting_is_named_and_the_job_ends(
    framework, fault, ranks, controller
):
    check_hang(framework, fault, ranks, controller)


@pytest.mark.soak
@pytest.mark.parametrize(("framework", "fault", "ranks", "controller"), MORE_HANGS)
def test_so_it_is_under_both_frameworks_and_controllers(framework, fault, ranks, controller):
    check_hang(framework, fault, ranks, controller)


@pytest.mark.parametrize(
    ("framework", "fault", "ranks", "controller"),
    [
        ("torch", "locked_a_while", 3, "mpi"),
        ("torch", "suspended", 2, "gloo"),
        ("tensorflow", "locked_a_while", 2, "gloo"),
        *(
            pytest.param(framework, fault, 2, controller, marks=pytest.mark.soak)
            for framework in ("torch", "tensorflow")
            for fault in ("locked_a_while", "suspended")
            for controller in ("mpi", "gloo")
        ),
    ],
)
def test_a_rank_that_holds_pythons_lock_or_a_job_that_was_suspended_goes_on(
    framework, fault, ranks, controller
):
    outcome = launch("frontends/hangs.py", ranks, controller, framework, fault)
    assert outcome.check() == [6] * ranks


@pytest.mark.parametrize(
    ("framework", "controller"),
    [
        ("torch", "gloo"),
        pytest.param("torch", "mpi", marks=pytest.mark.soak),
        pytest.param("tensorflow", "mpi", marks=pytest.mark.soak),
        pytest.param("tensorflow", "gloo", marks=pytest.mark.soak),
    ],
)
def test_join_is_refused_with_the_reason(framework, controller):
    outcome = fail(framework, "joins", 2, controller)
    assert "hvd.join() cannot be used with hvd_sparse" in outcome.output


def test_a_rank_that_saves_alone_is_named_and_names_the_others():
    output = fail("torch", "saves", 2, "mpi").output
    states = "the states that save() gathers from all ranks"
    assert re.search(rf"rank 1 waits for {re.escape(states)} since \d+ s; rank 0 has not", output)
    # Where in the program it is: in save(), called by this line.
    named = r"rank 0 waits for .*; rank 1 has not submitted .*, called by \S*hangs.py:\d+ \(train\)"
    assert re.search(named, output)


@pytest.mark.parametrize(
    ("framework", "fault", "controller"),
    [
        ("torch", "throws", "mpi"),
        ("torch", "crashes", "gloo"),
        *(
            pytest.param(framework, fault, controller, marks=pytest.mark.soak)
            for framework in ("torch", "tensorflow")
            for fault in ("throws", "killed", "crashes")
            for controller in ("mpi", "gloo")
        ),
    ],
)
def test_a_rank_that_ends_ends_the_job(framework, fault, controller):
    outcome = fail(framework, fault, 2, controller)
    if fault == "crashes":
        assert re.search(
            r"stacks of 1\.\d+\n.*Segmentation fault.*in crashes", outcome.stacks, re.S
        )
    words = (
        "HorovodInternalError",
        "UnknownError",
        "ExchangeTimeout",
    )  # the watchdog may be first on a busy machine
    assert any(word in outcome.output for word in words) or fault in ("killed", "crashes")


def test_horovods_shutdown_does_not_stop_a_rank_that_submits_tensors():
    outcome = launch("frontends/hangs.py", 2, "mpi", "torch", "shuts_down")
    error, nothing = outcome.check()
    assert error.startswith("HorovodInternalError"), error
    assert nothing == "nothing was raised"
