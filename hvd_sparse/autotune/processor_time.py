"""Seconds of the processor: how many cores a rank has while all ranks work, and what its threads
use of them."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

MOST_CORES = 8
"""More than the threads of a rank that work in a step ask for."""
BLOCK = bytes(1 << 20)
"""Hashed again and again, which threads do without holding each other up."""


class Stopwatch:
    """By the clock, and by the processor: of all threads of this process."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def clock_s(self) -> float:
        """Since it was started."""
        return time.perf_counter() - self._clock

    def processor_s(self, idle: float) -> float:
        """Of the processor since then, without ``idle`` of every second, which threads use that
        wait for work."""
        return max(0.0, time.process_time() - self._processor - idle * self.clock_s())


def idle_share(seconds: float) -> float:
    """Of a second, what this process uses of the processor while nothing is done: Horovod's thread
    looks for work.

    seconds : how long this takes
    """
    watch = Stopwatch()
    time.sleep(seconds)
    return watch.processor_s(0.0) / watch.clock_s()


def cores_there(seconds: float) -> float:
    """Cores that this process gets when it asks for many, at the most ``MOST_CORES``: fewer than
    the machine has where other ranks, called at the same time, or a quota leave it less.

    seconds : how long this takes
    """
    threads = min(MOST_CORES, os.cpu_count() or 1)
    end = time.perf_counter() + seconds

    def work() -> float:
        while time.perf_counter() < end:
            hashlib.sha256(BLOCK).digest()
        return time.thread_time()

    watch = Stopwatch()
    with ThreadPoolExecutor(threads) as pool:
        used_s = sum(pool.map(lambda _: work(), range(threads)))
    return used_s / watch.clock_s()
