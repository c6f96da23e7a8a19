"""Processes that are suspended, or whose one thread holds Python's lock: what passes then is
nobody's fault."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from harness import slow

from hvd_sparse.watch import awake_clock
from hvd_sparse.watch.watchdog import EXIT_CODE

LIMIT_S = slow(3.0)

WAITS = """
import ctypes, sys, time
import numpy as np
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.watch.patient_collective import PatientCollective
from hvd_sparse.watch.watchdog import Watchdog

limit_s = float(sys.argv[1])

def on_rank(collective):
    watchdog = Watchdog("w", collective.rank, limit_s)
    watchdog.ledger.begin("a")
    if not collective.rank:
        print("waits", flush=True)
    elif sys.stdin.readline() == "locks\\n":
        ctypes.PyDLL(None).sleep(int(2 * limit_s))  # for all threads
        sys.stdin.readline()
    total = PatientCollective(collective, watchdog).allreduce(np.ones(2), "a").wait(limit_s)
    watchdog.ledger.end("a")
    return total.tolist()

print(LocalWorld(2, timeout_s=1200).run(on_rank), flush=True)
"""


@pytest.fixture
def waiting():
    """A process in which one rank waits for another, which waits for a line of ours."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(LIMIT_S)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "waits\n"
    yield process
    process.kill()
    process.communicate()


def suspend(process):
    process.send_signal(signal.SIGSTOP)
    time.sleep(2 * LIMIT_S)
    process.send_signal(signal.SIGCONT)


def lock(process):
    process.stdin.write("locks\n")
    process.stdin.flush()
    time.sleep(2 * LIMIT_S)


@pytest.mark.parametrize("stand_still", [suspend, lock])
def test_a_process_that_stood_still_for_longer_than_the_limit_waits_on(waiting, stand_still):
    """Neither the wait nor the watchdog ends it."""
    stand_still(waiting)
    time.sleep(1.0)  # it sees how late it is before what it waits for is there
    output, _ = waiting.communicate("goes on\n")
    assert (waiting.returncode, output) == (0, "[[2.0, 2.0], [2.0, 2.0]]\n")


def test_the_limit_holds_after_a_standstill_too(waiting):
    suspend(waiting)
    waiting.stdout.read()
    assert waiting.wait() in (1, EXIT_CODE)  # of the wait, or of the watchdog


def test_of_what_passes_between_two_looks_so_much_counts_and_the_rest_is_told(monkeypatch):
    now = SimpleNamespace(s=100.0)
    monkeypatch.setattr(awake_clock, "time", SimpleNamespace(monotonic=lambda: now.s))
    clock = awake_clock.AwakeClock(most_s=0.5)
    before_s, began_s = clock.now(), now.s
    now.s += 4.0
    midway_s, awake_again_s = began_s + 2.0, now.s
    assert clock.now() - before_s == 0.5
    assert clock.stood_s(10.0) == 3.5
    for _ in range(10):
        now.s += 0.25
        clock.now()
    assert clock.now() - before_s == 3.0
    assert clock.age_s(began_s) == 3.0
    assert clock.age_s(awake_again_s) == 2.5, "begun after the standstill"
    assert clock.age_s(midway_s) <= clock.age_s(began_s)
    assert clock.age_s(now.s + 1.0) == 0.0
    assert clock.stood_s(1.0) == 0, "that was longer ago"
