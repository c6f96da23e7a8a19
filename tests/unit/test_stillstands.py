"""Processes that are suspended, or whose one thread holds Python's lock: what passes then is
nobody's fault."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

from hvd_sparse.resilience.awake_clock import AwakeClock
from hvd_sparse.resilience.watchdog import EXIT_CODE

LIMIT_S = 3.0

WAITS = """
import ctypes, sys, time
import numpy as np
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.resilience.patient_collective import PatientCollective
from hvd_sparse.resilience.watchdog import Watchdog

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

print(LocalWorld(2, timeout_s=50).run(on_rank), flush=True)
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
    process.communicate(timeout=30)


def suspend(process):
    process.send_signal(signal.SIGSTOP)
    time.sleep(2 * LIMIT_S)
    process.send_signal(signal.SIGCONT)


def lock(process):
    process.stdin.write("locks\n")
    process.stdin.flush()
    time.sleep(2 * LIMIT_S)


@pytest.mark.timeout(90)
@pytest.mark.parametrize("stand_still", [suspend, lock])
def test_a_process_that_stood_still_for_longer_than_the_limit_waits_on(waiting, stand_still):
    """Neither the wait nor the watchdog ends it."""
    stand_still(waiting)
    time.sleep(1.0)  # it sees how late it is before what it waits for is there
    output, _ = waiting.communicate("goes on\n", timeout=60)
    assert (waiting.returncode, output) == (0, "[[2.0, 2.0], [2.0, 2.0]]\n")


@pytest.mark.timeout(90)
def test_the_limit_holds_after_a_standstill_too(waiting):
    suspend(waiting)
    waiting.stdout.read()
    assert waiting.wait(timeout=60) in (1, EXIT_CODE)  # of the wait, or of the watchdog


def test_of_what_passes_between_two_looks_so_much_counts_and_the_rest_is_told():
    clock = AwakeClock(most_s=0.05)
    before_s, began_s = clock.now(), time.monotonic()
    time.sleep(0.4)
    midway_s, awake_again_s = began_s + 0.2, time.monotonic()
    assert clock.now() - before_s <= 0.06
    assert clock.stood_s(10.0) >= 0.3
    for _ in range(10):
        time.sleep(0.02)
        clock.now()
    assert clock.now() - before_s >= 0.2
    assert clock.age_s(began_s) == pytest.approx(clock.now() - before_s, abs=0.02)
    assert 0.2 <= clock.age_s(awake_again_s) < 0.35, "begun after the standstill"
    assert clock.age_s(midway_s) <= clock.age_s(began_s)
    assert clock.age_s(time.monotonic() + 1.0) == 0.0
    assert clock.stood_s(0.1) == 0, "that was longer ago"
