"""Seconds of the processor: those of all threads, and how many cores there are for them."""

from __future__ import annotations

import os
import threading
import time

import pytest

from hvd_sparse.autotune.prober import Prober
from hvd_sparse.autotune.processor_time import MOST_CORES, Stopwatch, available_cores, idle_share
from hvd_sparse.collectives.local import LocalWorld

WORK_S = 0.05
CLOCKS_S = 0.001
"""The kernel's clocks of threads and of the process differ by some microseconds."""


def work() -> None:
    """Of this thread's processor time, so much, however long that takes beside others."""
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        pass


def test_all_threads_count_and_what_waiting_ones_use_is_taken_out():
    watch = Stopwatch()
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used_s, clock_s = watch.processor_s(0.0), watch.clock_s()
    assert used_s >= 2 * WORK_S - CLOCKS_S
    allowed_s = used_s - 0.1 * clock_s + 2 * (watch.clock_s() - clock_s)
    assert watch.processor_s(0.1) <= allowed_s + CLOCKS_S
    assert watch.processor_s(1e9) == 0.0


def test_cores_are_no_more_than_there_are():
    assert 0.0 < available_cores(0.05) <= 1.01 * min(MOST_CORES, os.cpu_count() or 1)
    assert 0.0 <= idle_share(0.05) <= (os.cpu_count() or 1)


@pytest.mark.parametrize(
    ("clock_s", "processor_s", "taken_s"), [(0.1, 0.2, 0.8), (0.9, 0.2, 0.9), (0.1, 0.0, 0.1)]
)
def test_work_takes_no_less_than_the_cores_of_all_ranks_need_for_it(clock_s, processor_s, taken_s):
    """Ranks have used 1 and 3 times as much, so twice on average, of half a core each."""

    def script(collective):
        prober = Prober(collective, 20)
        prober.cores = 0.5
        return prober._agree(clock_s, (1 + 2 * collective.rank) * processor_s)

    assert LocalWorld(2, 60.0).run(script) == [pytest.approx(taken_s)] * 2


def test_ranks_agree_on_their_cores():
    def script(collective):
        prober = Prober(collective, 20)
        prober.share_cores()
        return prober.cores

    first, second = LocalWorld(2, 60.0).run(script)
    assert first == second and 0.0 < first <= 1.01 * (os.cpu_count() or 1)
