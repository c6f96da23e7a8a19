"""What becomes of the last rank in the middle of training, for the workers of both frameworks."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

from harness import LIMIT_S, slow

GOOD_STEPS = 3
TIMEOUT_S = slow(3.0)
FOR_EVER_S = 3 * LIMIT_S
# Gloo gives up a paused rank by itself, after 30 s: before the watchdog, on a busy machine.
os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(round(FOR_EVER_S))


def stopped() -> None:
    """Paused as a whole, with all threads."""
    os.kill(os.getpid(), signal.SIGSTOP)


def asleep() -> None:
    """Python hangs; Horovod's thread and the watchdog's go on."""
    time.sleep(FOR_EVER_S)


def throws() -> None:
    """As a forward pass might."""
    raise RuntimeError("the forward pass failed")


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crashes() -> None:
    """As native code might: a segmentation fault."""
    ctypes.string_at(0)


def locked() -> None:
    """Python's lock is held, as by a regular expression or a sort; Horovod's thread goes on."""
    ctypes.PyDLL(None).sleep(int(FOR_EVER_S))


FAULTS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (stopped, asleep, locked, throws, killed, crashes)
}


def train(step: Callable[[], Any], is_victim: bool, fault: Callable[[], None]) -> None:
    """Good steps on every rank; then the fault on one, and a step without end on the others."""
    for _ in range(GOOD_STEPS):
        step()
    if is_victim:
        fault()
    while True:
        step()


# -- what a job outlives --------------------------------------------------------------------------


def locked_a_while(processes: list[int]) -> None:
    """On the last rank: for longer than the limit, and not for twice as long."""
    ctypes.PyDLL(None).usleep(int(1.5e6 * TIMEOUT_S))


def suspended(processes: list[int]) -> None:
    """All ranks are stopped for twice the limit, and go on; meanwhile the others wait for the last
    one."""
    numbers = " ".join(map(str, processes))
    stopped = f"kill -STOP {numbers}; sleep {2 * TIMEOUT_S}; kill -CONT {numbers}"
    subprocess.Popen(["sh", "-c", f"sleep {TIMEOUT_S / 3}; {stopped}"])
    for _ in range(20):  # of which half come after it
        time.sleep(TIMEOUT_S / 30)


PASSING: dict[str, Callable[[list[int]], None]] = {
    f.__name__: f for f in (locked_a_while, suspended)
}


def train_on(
    step: Callable[[], Any],
    is_victim: bool,
    fault: Callable[[list[int]], None],
    processes: list[int],
) -> None:
    """Good steps on every rank, before the fault on one and after it."""
    for _ in range(GOOD_STEPS):
        step()
    if is_victim:
        fault(processes)
    for _ in range(GOOD_STEPS):
        step()
