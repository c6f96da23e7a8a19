"""Processes that are suspended, or one of whose threads holds Python's lock."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time

import pytest
from harness import slow

from hvd_sparse.watch import peers as clocks
from hvd_sparse.watch.watchdog import EXIT_CODE

LIMIT_S = slow(3.0)

WAITS = """
import ctypes, sys, threading, time
import numpy as np
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.watch.watchdog import PatientCollective, Watchdog

limit_s = float(sys.argv[1])

def notice():
    read_s = time.monotonic()
    while time.monotonic() - read_s < limit_s:
        read_s = time.monotonic()
        time.sleep(0.01)
    print("stood still", flush=True)

threading.Thread(target=notice, daemon=True).start()

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


@pytest.mark.parametrize("stand_still", [suspend, lock])
def test_a_process_that_stood_still_for_longer_than_the_limit_waits_on(waiting, stand_still):
    """Neither the wait nor the watchdog ends it."""
    stand_still(waiting)
    assert waiting.stdout.readline() == "stood still\n"
    output, _ = waiting.communicate("goes on\n")
    assert (waiting.returncode, output) == (0, "[[2.0, 2.0], [2.0, 2.0]]\n")


def test_the_limit_holds_after_a_standstill_too(waiting):
    suspend(waiting)
    waiting.stdout.read()
    assert waiting.wait() in (1, EXIT_CODE)  # of the wait, or of the watchdog


def test_a_clock_that_does_not_run_any_more_is_started_anew():
    clock = clocks.RunningClock()
    clock._thread = threading.Thread(target=lambda: None)  # as after a fork
    clock.start()
    while not clock.now_s:
        time.sleep(clocks.TURN_S)
