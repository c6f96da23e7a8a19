"""The watchdog's parts without Horovod: the ledger, what is said of other ranks, and the end."""

import signal
import sys
import time
from types import ModuleType, SimpleNamespace

import pytest
from conformance.stack_checks import check_stack_reading
from programs import run_python

from hvd_sparse.watch import peers
from hvd_sparse.watch import watchdog as watchdogs
from hvd_sparse.watch.peers import Answer, Endpoint, Port, ask_all, clock
from hvd_sparse.watch.watchdog import (
    EXIT_CODE,
    Line,
    PatientPending,
    Watchdog,
    is_in_join,
    lines_of_main_thread,
)

STUCK = """
import atexit, os, sys, time
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import watchdog
atexit.register(time.sleep, 3600)  # as Horovod's own end, which waits for the other ranks
watchdog.END_S = 1
stuck = watchdog.Watchdog("stuck", 0, 600.0)
stuck.ledger.begin("a")
try:
    raise ExchangeTimeout(stuck.give_up())
except ExchangeTimeout as error:
    if sys.argv[1] == "ends":
        raise
    print(error, file=sys.stderr, flush=True)
    if sys.argv[1] == "trains on":  # in a new world
        stuck.ledger.restart()
        stuck.ledger.begin("a")
        stuck.ledger.end("a")
    watchdog.GRACE_S = 1
    while sys.argv[1] == "goes on" or stuck.ledger.idle_s < 3:
        time.sleep(0.1)
    os._exit(0)
"""


@pytest.fixture
def here():
    made = Watchdog("here", 0, None)
    yield made
    made.close()


@pytest.fixture
def start_peer(monkeypatch):
    """Start a rank that answers, or name one that is silent: nobody waits for it here."""
    open_ports = []

    def ask_others(peers, submitted, _):
        return ask_all([peer for peer in peers if peer.port], submitted, 600.0)

    def start(rank, behind=None):
        if behind is None:
            return Endpoint(rank, (), 0, "")
        answer = Answer(rank, 0, behind, "it is at train.py:3 (step)")
        open_ports.append(Port(lambda submitted: answer))
        return Endpoint(rank, ("127.0.0.1",), open_ports[-1].number, open_ports[-1].token)

    monkeypatch.setattr(watchdogs, "ask_all", ask_others)
    yield start
    for port in open_ports:
        port.close()


@pytest.fixture
def ends(monkeypatch):
    said = []
    monkeypatch.setattr(watchdogs, "say_and_exit", said.append)
    return said


@pytest.fixture
def stopped(monkeypatch):
    """A clock that stands still."""
    clock = SimpleNamespace(now_s=100.0, start=lambda: None)
    monkeypatch.setattr(peers, "clock", clock)
    monkeypatch.setattr(watchdogs, "clock", clock)
    return clock


LIMIT_S = 10.0


@pytest.mark.parametrize(
    ("peers", "ends_at", "words"),
    [
        ([["a"]], 1, "rank 1 has not submitted them"),
        ([["a"], None], 2, "rank 2 does not answer"),
        ([None], 2, "rank 1 does not answer"),
        ([[], []], 2, "all ranks answer and have submitted them"),
        ([], 1, "the other ranks are unknown"),
    ],
    ids=["late", "late and silent", "silent", "nobody", "unknown"],
)
def test_late_ranks_end_a_wait_and_silent_ones_later(here, start_peer, ends, peers, ends_at, words):
    here.meet([start_peer(rank, behind) for rank, behind in enumerate(peers, 1)])
    here.ledger.begin("a")
    for looks, (limits, is_over) in enumerate([(0.9, False), (1.1, ends_at == 1), (2.1, True)]):
        here._judge(LIMIT_S, "a", 1, limits * LIMIT_S)
        assert bool(ends) == is_over, looks
    assert words in ends[0] and "ExchangeTimeout" in ends[0] and "raise timeout_s" in ends[0]


@pytest.mark.parametrize("raises", [True, False])
def test_a_wait_that_raises_has_time_to(here, start_peer, ends, caplog, monkeypatch, raises):
    monkeypatch.setattr(watchdogs, "GRACE_S", 0.0)
    if raises:
        sleep = time.sleep
        monkeypatch.setattr(
            time, "sleep", lambda seconds: sleep(seconds) if seconds else here.give_up()
        )
    here.meet([start_peer(1, ["a"])])
    here.ledger.begin("a")
    here.ledger.begin_wait()
    here._judge(LIMIT_S, "a", 1, 1.1 * LIMIT_S)
    here.ledger.end_wait()
    assert "rank 1 has not submitted them" in caplog.text
    assert bool(ends) != raises


def test_the_garbage_collector_may_close_it_in_a_thread_that_holds_its_lock(here):
    with here.ledger._lock:
        here.close()


def submit_the_next_steps(ledger):
    ledger.end("a")
    ledger.begin("a")


def reach_a_collective(ledger):
    ledger.reached_s = clock.now_s + 1


@pytest.mark.parametrize("comes", [submit_the_next_steps, reach_a_collective])
def test_what_comes_while_the_ranks_are_asked_ends_nothing(here, ends, comes):
    def answer(submitted):
        comes(here.ledger)
        return Answer(1, 0, ["a"], "it is somewhere")

    port = Port(answer)
    here.meet([Endpoint(1, ("127.0.0.1",), port.number, port.token)])
    here.ledger.begin("a")
    here._judge(LIMIT_S, "a", 1, 1.1 * LIMIT_S)
    port.close()
    assert not ends


def test_a_long_save_does_not_age_while_collectives_arrive(stopped, here):
    collective = SimpleNamespace(wait=lambda timeout_s: "result", is_done=None)
    waits = PatientPending(collective, here)
    here.ledger.begin("save")
    for limits in (0.9, 1.8, 2.7):
        stopped.now_s = 100.0 + limits * LIMIT_S
        assert here.ledger.oldest() == ("save", 1, pytest.approx(0.9 * LIMIT_S))
        assert waits.wait(LIMIT_S) == "result"
    assert here.ledger.oldest() == ("save", 1, 0.0)


def test_ranks_that_have_submitted_less_lag(here, start_peer):
    here.meet([start_peer(1, [])])
    assert here.lagging() == []
    here.ledger.begin("a")
    assert here.lagging() == [1]


@pytest.mark.parametrize(
    ("program", "code"), [("ends", -signal.SIGALRM), ("goes on", EXIT_CODE), ("trains on", 0)]
)
def test_a_program_that_was_told_of_a_timeout_cannot_hang_in_horovod_afterwards(program, code):
    found = run_python("-c", STUCK, program)
    assert found.returncode == code, found
    assert "rank 0 waits for a since" in found.stderr


def test_reading_the_stack_does_not_end_the_process():
    check_stack_reading("hvd_sparse.watch.watchdog.lines_of_main_thread")


def test_the_main_thread_is_seen_in_the_join_of_horovods_package_alone(monkeypatch):
    (line, *_) = lines_of_main_thread()
    assert line.function == "lines_of_main_thread"
    package = ModuleType("horovod")
    package.__path__ = ["/packages/horovod"]
    monkeypatch.setitem(sys.modules, "horovod", package)
    assert is_in_join([line, Line("/packages/horovod/torch/mpi_ops.py", 7, "join")])
    assert not is_in_join([Line("/packages/horovod_own/train.py", 7, "join")])
    assert not is_in_join([Line("/packages/horovod/torch/mpi_ops.py", 7, "synchronize")])
