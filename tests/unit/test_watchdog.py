"""The watchdog's parts without Horovod: the ledger, what is said of other ranks, and the end."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from types import ModuleType

import pytest
import worlds
from listeners import listening
from programs import run_python

from hvd_sparse.step.driver import Conversation
from hvd_sparse.watch.ledger import Ledger
from hvd_sparse.watch.peers import Endpoint, introduce
from hvd_sparse.watch.stack import Line, is_in_join, lines_of_main_thread, place_of
from hvd_sparse.watch.watchdog import EXIT_CODE, Watchdog

STUCK = """
import atexit, sys, time
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import stack, watchdog
atexit.register(time.sleep, 3600)  # as Horovod's own end, which waits for the other ranks
watchdog.GRACE_S = stack.END_S = 1
stuck = watchdog.Watchdog("stuck", 0, 1.0)
stuck.ledger.begin("a")
try:
    raise ExchangeTimeout(stuck.give_up())
except ExchangeTimeout:
    if sys.argv[1] == "ends":
        raise
    time.sleep(3600)
"""

LOOKED_AT = """
import gc, sys, threading, time
from hvd_sparse.watch.stack import lines_of_main_thread

class Dropped:
    def __init__(self):
        self.itself = self

    def __del__(self):  # as that of a compressor, which closes a socket: other threads run on
        time.sleep(0)
        if looking.is_alive():
            Dropped()

def look():
    Dropped()
    for _ in range(300):
        gc.enable()  # it is here that garbage is collected
        lines_of_main_thread()
        gc.disable()

def down(depth, *more):
    return depth and down(depth - 1, depth, *more)

sys.setswitchinterval(1e-6)
gc.set_threshold(1)
gc.disable()
looking = threading.Thread(target=look)
looking.start()
while looking.is_alive():
    down(20)
    down(5, 1, 2)
"""


@pytest.fixture
def listen():
    """Starts listeners, and closes them."""
    with listening() as start:
        yield start


def test_a_ledger_knows_what_is_pending_since_when_and_how_often():
    ledger = Ledger()
    ledger.begin("a")
    time.sleep(0.02)
    ledger.begin("b")
    assert list(ledger.pending()) == ["a", "b"]
    assert ledger.pending(older_than_s=60) == {}
    assert ledger.oldest_s() >= 0.02
    ledger.end("a")
    ledger.begin("a")
    assert ledger.pending() == {"b": 1, "a": 2}
    ledger.clear()
    assert ledger.pending() == {} and ledger.oldest_s() == 0


def test_a_ledger_is_behind_another_in_what_it_submitted_less_often():
    ledger = Ledger()
    for name in "aab":
        ledger.begin(name)
    assert ledger.behind({"a": 2, "b": 2, "c": 1}) == ["b", "c"]
    ledger.restart()
    assert ledger.behind({"a": 1}) == ["a"]


def test_a_ledger_says_whether_a_wait_of_our_own_is_under_way():
    ledger = Ledger()
    with ledger.waiting(), ledger.waiting():
        assert ledger.is_waiting
    assert not ledger.is_waiting


def test_ranks_introduce_themselves_in_rank_order(listen):
    endpoints = [listen(rank) for rank in range(3)]

    def on_rank(collective):
        return Conversation(introduce(endpoints[collective.rank]), collective, "meet").finish(5.0)

    assert worlds.run(3, on_rank) == [endpoints] * 3


def test_what_is_said_names_tensors_and_ranks(listen):
    watchdog = Watchdog("here", 0, None)
    gone = listen(2)
    closed = Endpoint(2, gone.host, (), _free_port(), gone.token)
    elsewhere = Endpoint(3, "another host", ("no address",), 1, "")
    watchdog.meet([watchdog.endpoint(0), listen(1), closed, elsewhere])
    watchdog.ledger.begin("a")
    watchdog.ledger.begin("b")
    words = watchdog.give_up()
    watchdog.close()
    assert words.startswith("rank 0 waits for a, b since 0 s; ")
    assert "rank 1 has not submitted a: it is at train.py:3 (step)" in words
    assert "rank 2 has ended" in words
    assert "rank 3 could not be asked at no address:1" in words


@pytest.mark.parametrize(("program", "code"), [("ends", -signal.SIGALRM), ("goes on", EXIT_CODE)])
def test_a_program_that_was_told_of_a_timeout_cannot_hang_in_horovod_afterwards(program, code):
    """Neither at its exit, nor where it handles the error."""
    found = subprocess.run([sys.executable, "-c", STUCK, program], capture_output=True, text=True)
    assert found.returncode == code, found
    assert "ExchangeTimeout: rank 0 waits for a since" in found.stderr


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_the_place_is_the_programs_own_innermost_line():
    """As another thread sees it."""
    lines = []
    thread = threading.Thread(target=lambda: lines.extend(lines_of_main_thread()))
    thread.start()
    thread.join()
    place = place_of(lines)
    assert re.search(
        rf"threading.py:\d+ \(\w+\), called by {re.escape(__file__)}:\d+ \(test_the_place", place
    )
    assert not is_in_join(lines)  # that was a thread's join


def test_looking_at_the_main_thread_while_garbage_is_collected_does_not_end_the_process():
    """Under CPython 3.11 frame objects of a thread that runs on are not safe."""
    found = run_python("-X", "faulthandler", "-c", LOOKED_AT)
    assert found.returncode == 0, found.stderr


def test_the_main_thread_is_seen_in_the_join_of_horovods_package_alone(monkeypatch):
    (line, *_) = lines_of_main_thread()
    assert line.function == "lines_of_main_thread"
    package = ModuleType("horovod")
    package.__path__ = ["/packages/horovod"]
    monkeypatch.setitem(sys.modules, "horovod", package)
    assert is_in_join([line, Line("/packages/horovod/torch/mpi_ops.py", 7, "join")])
    assert not is_in_join([Line("/packages/horovod_own/train.py", 7, "join")])
    assert not is_in_join([Line("/packages/horovod/torch/mpi_ops.py", 7, "synchronize")])
