"""A silent process that is paused is told from one that is busy or has ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from harness import slow
from listeners import PATIENCE_S

from hvd_sparse.watch import peers
from hvd_sparse.watch.peers import Endpoint, Question, ask, ask_all
from hvd_sparse.watch.process_state import (
    ProcessState,
    judge,
    look_at,
    process_from_json,
    process_to_json,
    this_process,
)
from hvd_sparse.watch.watchdog import Watchdog

OTHER_PROCESS = """
import ctypes, json, re, sys, time
from hvd_sparse.watch.process_state import process_to_json
from hvd_sparse.watch.watchdog import Watchdog
endpoint = Watchdog("other", 5, None).endpoint(5)
print(json.dumps([endpoint.port, endpoint.token, process_to_json(endpoint.process)]), flush=True)
holding = {
    "matches": lambda: re.match("(a+)+$", "a" * 40 + "b"),  # for hours
    "sleeps": lambda: ctypes.PyDLL(None).sleep(3600),
    "nothing": lambda: time.sleep(3600),
}
holding[sys.stdin.readline().strip()]()
"""


class Other:
    """A watched process of its own."""

    def __init__(self, rank=5):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        port, token, process = json.loads(self.process.stdout.readline())
        self.endpoint = Endpoint(
            rank, socket.gethostname(), (), port, token, process_from_json(process)
        )

    def do(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # returns when it has stopped

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def start_other():
    """Starts processes, and ends them."""
    made = []

    def start(rank=5):
        made.append(Other(rank))
        return made[-1]

    yield start
    for other in made:
        other.end()


def test_a_process_that_runs_one_that_is_paused_and_one_that_has_ended_are_told_apart(start_other):
    other = start_other()
    assert ask(other.endpoint, Question({"a": 1}), PATIENCE_S).behind == ("a",)
    other.stop()
    assert ask(other.endpoint, Question({}), 0.5).state == "paused"
    other.process.send_signal(signal.SIGCONT)
    assert ask(other.endpoint, Question({}), PATIENCE_S).state == "answers"
    other.end()
    assert ask(other.endpoint, Question({}), PATIENCE_S).state == "ended"


def until_silent(other):
    """Whoever holds Python's lock answers nothing: that is when it holds it."""
    for _ in range(100):
        if ask(other.endpoint, Question({}), slow(0.5)).state != "answers":
            return
    raise AssertionError("it never took the lock")


@pytest.mark.parametrize("holding", ["matches", "sleeps"])
def test_a_process_that_holds_pythons_lock_is_not_taken_for_one_that_is_paused(
    start_other, holding
):
    """Neither where it computes nor where it sleeps; but it is, once it is paused."""
    other = start_other()
    other.do(holding)
    until_silent(other)
    assert ask(other.endpoint, Question({}), slow(1.0)).state == "busy"
    other.stop()
    assert ask(other.endpoint, Question({}), slow(1.0)).state == "paused"


def test_of_a_process_on_another_host_the_ranks_there_are_asked(start_other, monkeypatch):
    neighbour, busy, paused = start_other(1), start_other(2), start_other(3)
    neighbour.do("nothing")
    busy.do("matches")
    until_silent(busy)
    paused.stop()
    monkeypatch.setattr(
        peers, "look_at", lambda process: None
    )  # as from elsewhere; the neighbour has its own eyes
    everybody = [each.endpoint for each in (neighbour, busy, paused)]
    assert [answer.state for answer in ask_all(everybody, Question({}), slow(1.0))] == [
        "answers",
        "busy",
        "paused",
    ]
    assert [answer.state for answer in ask_all(everybody[1:], Question({}), slow(1.0))] == [
        "silent",
        "silent",
    ]


def test_what_the_kernel_says_is_of_that_very_process():
    here = this_process()
    assert look_at(here).state in "RS"
    assert look_at(replace(here, start=here.start + 1)) is None, "another had the number before"
    assert look_at(replace(here, system="elsewhere")) is None
    assert look_at(None) is None
    assert process_from_json(json.loads(json.dumps(process_to_json(here)))) == here
    assert process_from_json(process_to_json(None)) is None


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (ProcessState("R", (1, 0)), ProcessState("S", (1, 5)), "busy"),
        (ProcessState("R", (1, 5)), ProcessState("S", (1, 0)), "busy"),  # a thread ended in between
        (
            ProcessState("S", (1, 5)),
            ProcessState("S", (1, 5)),
            "paused",
        ),  # frozen: no thread had a moment
        (ProcessState("R", (1, 5)), ProcessState("T", (1, 6)), "paused"),
        (ProcessState("R", (1, 5)), ProcessState("t", (1, 6)), "paused"),
        (ProcessState("R", (1, 5)), ProcessState("Z", (1, 6)), "ended"),
        (None, ProcessState("R", (1, 5)), "silent"),
        (ProcessState("R", (1, 5)), None, "silent"),
    ],
)
def test_two_looks_tell_what_became_of_a_silent_process(before, after, state):
    assert judge(before, after) == state


def test_a_forked_child_does_not_keep_its_parents_port():
    watchdog = Watchdog("parent", 0, None)
    endpoint = watchdog.endpoint(0)
    child = os.fork()
    if not child:
        time.sleep(3600)
        os._exit(0)
    try:
        watchdog.close()
        assert ask(endpoint, Question({}), PATIENCE_S).state == "ended"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
