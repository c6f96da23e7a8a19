"""The cluster of namespaces: its links are as slow as asked, and nothing is left behind."""

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("horovod.torch", reason="the bench uses Horovod", exc_type=ImportError)

from harness import LIMIT_S, ROOT
from network._spaces import finish, needs_spaces, start

from benchmarks.network.cluster import Cluster, bits_per_second, burst_bytes, inside


@needs_spaces
def test_links_carry_what_the_shaper_allows_and_the_counters_see_it():
    finish(inside([sys.executable, str(ROOT / "tests" / "network" / "_wire.py")]))


def test_a_cluster_is_never_laid_into_the_machines_own_network(monkeypatch):
    monkeypatch.delenv("HVD_SPARSE_NAMESPACES", raising=False)
    monkeypatch.setenv("HVD_SPARSE_CLUSTER", "1")  # the name of a cluster of docker/cluster
    with pytest.raises(RuntimeError, match=r"scripts/bench-network"):
        Cluster(2).lay()


def test_rates_are_read_as_tc_writes_them():
    assert [bits_per_second(rate) for rate in ("100mbit", "2.5gbit")] == [1e8, 2.5e9]
    assert math.isinf(bits_per_second("none"))
    assert burst_bytes("10gbit") == 2_500_000
    for text in ("10 fast", "5mb", "fastgbit", "-1gbit", "0mbit", "infgbit"):
        with pytest.raises(argparse.ArgumentTypeError, match=f"{text}.*as 1gbit"):
            bits_per_second(text)


@needs_spaces
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_the_outer_process_is_ended(number):
    lay = (
        "from benchmarks.network.cluster import Cluster; import subprocess, time; "
        "Cluster(2).lay(); "
    )
    work = f"{lay}subprocess.Popen(['sleep', '98765']); print('laid', flush=True); time.sleep(600)"
    command = inside([sys.executable, "-c", work])
    # whoever started pytest may have had interrupts ignored, and that is inherited
    restore = "import signal, subprocess; signal.signal(signal.SIGINT, signal.default_int_handler)"
    outer = start([sys.executable, "-c", f"{restore}; subprocess.run({command!r})"])
    assert outer.stdout is not None
    with outer.stdout:
        try:
            assert "laid" in outer.stdout.readline()
            assert _becomes(there=True)
            os.kill(outer.pid, number)
            outer.wait(timeout=LIMIT_S)
        finally:
            outer.kill()
            outer.wait(timeout=LIMIT_S)
    assert _becomes(there=False)
    links = subprocess.run(["ip", "-br", "link"], capture_output=True, text=True, check=True).stdout
    assert "switch" not in links and "host1" not in links


def _becomes(*, there):
    """Whether a sleeper is there; one look can miss it, as other processes come and go."""
    deadline = time.monotonic() + LIMIT_S
    while bool(found := _sleepers()) is not there and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(found) is there


def _sleepers():
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().split(b"\0")[:2] == [b"sleep", b"98765"]:
                found.append(path.parent.name)
        except OSError:
            continue
    return found
