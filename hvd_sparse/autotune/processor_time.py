"""Processor time: the cores that a rank has while all ranks work, and what its threads use of
them."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor

MOST_CORES = 8
"""Cores that are counted at most: more than the threads of a rank use in a step."""
BLOCK = bytes(1 << 20)
"""Bytes to hash again and again: hashing releases Python's lock, so that threads run together."""


class Stopwatch:
    """A stopwatch of clock time, and of the processor time of all threads of this process."""

    def __init__(self) -> None:
        self._clock, self._processor = time.perf_counter(), time.process_time()

    def clock_s(self) -> float:
        """Return the seconds since it was started."""
        return time.perf_counter() - self._clock

    def processor_s(self, idle: float) -> float:
        """Return the processor seconds since it was started.

        Parameters
        ----------
        idle : share of every second that is taken off, as waiting threads use it
        """
        return max(0.0, time.process_time() - self._processor - idle * self.clock_s())


def idle_share(seconds: float) -> float:
    """Return the share of a second for which this process uses the processor while it is idle.

    It is more than 0, as Horovod's thread looks for work all the time.

    Parameters
    ----------
    seconds : duration of the measurement
    """
    watch = Stopwatch()
    time.sleep(seconds)
    return watch.processor_s(0.0) / watch.clock_s()


def available_cores(seconds: float) -> float:
    """Return the number of cores that this process gets when it asks for ``MOST_CORES``.

    They are fewer than the machine has where a quota, or other ranks that measure at the same time,
    leave it fewer.

    Parameters
    ----------
    seconds : duration of the measurement
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
