"""What becomes of the last rank in the middle of training, for the workers of both frameworks."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Callable

GOOD_STEPS = 3
TIMEOUT_S = 3.0
FOR_EVER_S = 120.0


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


FAULTS: dict[str, Callable[[], None]] = {f.__name__: f for f in (stopped, asleep, throws, killed)}


def train(step: Callable[[], Any], is_victim: bool, fault: Callable[[], None]) -> None:
    """Good steps on every rank; then the fault on one, and a step without end on the others."""
    for _ in range(GOOD_STEPS):
        step()
    if is_victim:
        fault()
    while True:
        step()
