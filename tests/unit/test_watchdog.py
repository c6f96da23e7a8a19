"""The watchdog's parts without Horovod: the ledger, what ranks tell each other, and the end."""

import json
import signal
import socket
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from conformance.stack_checks import check_stack_reading
from programs import run_python

from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import peers
from hvd_sparse.watch import watchdog as watchdogs
from hvd_sparse.watch.peers import Answer, Endpoint, Ledger, Port, ask_all
from hvd_sparse.watch.watchdog import EXIT_CODE, PatientPending, Watchdog, was_ended_by_join

STUCK = """
import atexit, os, sys, time
from types import SimpleNamespace
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import watchdog
LIMIT_S = 0.5
atexit.register(time.sleep, 3600)  # as Horovod's own end, which waits for the other ranks
watchdog.END_S = 1
stuck = watchdog.Watchdog("stuck", 0, LIMIT_S)
stuck.ledger.begin("a")

def wait(limit_s):
    if sys.argv[1] == "is stuck":  # in a driver, which has no time limit
        watchdog.GRACE_S = 1
        time.sleep(3600)
    time.sleep(limit_s)
    raise ExchangeTimeout("not yet")

pending = SimpleNamespace(wait=wait, is_done=None)
try:
    watchdog.PatientPending(pending, "some collective", stuck).wait(LIMIT_S)
except ExchangeTimeout as error:
    assert not stuck.ledger.pending()
    if sys.argv[1] == "ends":
        raise
    print(error, file=sys.stderr, flush=True)
    if sys.argv[1] == "trains on":
        stuck.ledger.begin("a")
        stuck.ledger.end("a")
    watchdog.GRACE_S = 1
    while sys.argv[1] == "goes on" or stuck.ledger.standstill.seconds < 3:
        time.sleep(0.1)
    os._exit(0)
"""


@pytest.fixture
def here():
    made = Watchdog("here", 0, None)
    yield made
    made.close()


def judge(watchdog, limits):
    standstill = watchdog.ledger.standstill
    standstill.seconds = limits * LIMIT_S
    watchdog._judge(LIMIT_S, standstill)


@pytest.fixture
def meet(monkeypatch):
    """Let a watchdog meet ranks that answer what they are behind by, or are silent (None)."""

    def meet_peers(watchdog, *behind, meanwhile=lambda: None):
        def ask_all(*_):
            meanwhile()
            place = "it is at train.py:3 (step)"
            answers = {rank: each for rank, each in enumerate(behind, 1) if each is not None}
            return {rank: Answer(0, each, place) for rank, each in answers.items()}

        peers = [Endpoint(rank, [], 0, str(rank)) for rank, _ in enumerate(behind, 1)]
        monkeypatch.setattr(watchdogs, "ask_all", ask_all)
        watchdog.meet(0, SimpleNamespace(tell_all=lambda mine: [mine, *peers]))

    return meet_peers


@pytest.fixture
def ends(monkeypatch):
    said = []
    monkeypatch.setattr(watchdogs, "LAST_ANSWERS_S", 0.0)
    ending = {"write": lambda _, words: said.append(words.decode()), "_exit": said.append}
    monkeypatch.setattr(watchdogs, "os", SimpleNamespace(**ending))
    return said


def test_a_ledger_knows_what_is_pending_and_how_often():
    ledger = Ledger()
    ledger.begin("a")
    ledger.begin("b")
    assert list(ledger.pending()) == ["a", "b"]
    ledger.end("a")
    ledger.begin("a")
    assert ledger.pending() == {"b": 1, "a": 2}
    assert ledger.submissions == 3
    ledger.clear()
    assert ledger.pending() == {}
    assert ledger.submissions == 3


def test_a_standstill_ends_with_each_submission_and_each_result():
    ledger, seen = Ledger(), []
    # Of the last one, the result has arrived, or the step has failed.
    for change in (ledger.begin, ledger.begin, ledger.end, ledger.end):
        change("a")
        seen.append(ledger.standstill)
    assert len(set(seen)) == 3 and seen[2] is seen[3]


LIMIT_S = 10.0


@pytest.mark.parametrize(
    ("peers", "ends_at", "words"),
    [
        ([["a"]], 1, "rank 1 has not submitted them"),
        ([["a"], None], 2, "rank 2 does not answer"),
        ([None], 2, "rank 1 does not answer"),
        ([[], []], 2, "or an elastic run waits for a new worker"),
        ([], 1, "the other ranks are unknown"),
    ],
    ids=["late", "late and silent", "silent", "nobody", "unknown"],
)
def test_late_ranks_end_a_wait_and_silent_ones_later(here, meet, ends, peers, ends_at, words):
    meet(here, *peers)
    here.ledger.begin("a")
    for looks, (limits, is_over) in enumerate([(0.9, False), (1.1, ends_at == 1), (2.1, True)]):
        judge(here, limits)
        assert bool(ends) == is_over, looks
    assert words in ends[0] and "ExchangeTimeout" in ends[0] and "raise timeout_s" in ends[0]


def test_a_wait_of_this_package_gets_the_verdict(here, meet, ends, caplog):
    meet(here, ["a"])
    here.ledger.begin("a")
    here.ledger.waits.append("some collective")
    judge(here, 1.1)
    assert "rank 1 has not submitted them" in here.ledger.standstill.verdict
    assert here.ledger.standstill.verdict in caplog.text
    assert not ends


def submit_the_next_steps(watchdog):
    watchdog.ledger.end("a")
    watchdog.ledger.begin("a")


def reach_a_collective(watchdog):
    collective = SimpleNamespace(wait=lambda timeout_s: "result", is_done=None)
    assert PatientPending(collective, "save", watchdog).wait(LIMIT_S) == "result"


@pytest.mark.parametrize("comes", [submit_the_next_steps, reach_a_collective])
def test_what_comes_while_the_ranks_are_asked_ends_nothing(here, meet, ends, comes):
    meet(here, ["a"], meanwhile=lambda: comes(here))
    here.ledger.begin("a")
    judge(here, 1.1)
    assert not ends


@pytest.mark.parametrize(
    ("change", "exits", "is_given_time"),
    [
        (Ledger.pending, True, True),
        (Ledger.clear, False, True),
        (lambda ledger: ledger.end("a"), False, False),
    ],
    ids=["nothing", "an error", "a result"],
)
def test_what_comes_before_the_last_answers_does_not_end_the_process(
    here, meet, ends, monkeypatch, change, exits, is_given_time
):
    """The program can print an error of its own then. If it hangs afterwards, it ends later."""
    meet(here, ["a"])
    here.ledger.begin("a")
    monkeypatch.setattr(watchdogs, "time", SimpleNamespace(sleep=lambda _: change(here.ledger)))
    judge(here, 1.1)
    assert (EXIT_CODE in ends) == exits
    assert (here.ledger.standstill.verdict is not None) == is_given_time


def test_a_long_save_does_not_age_while_collectives_arrive(here):
    here.ledger.begin("save")
    for _ in range(3):
        here.ledger.standstill.seconds = 0.9 * LIMIT_S
        reach_a_collective(here)
        assert here.ledger.standstill.seconds == 0
    assert here.ledger.pending() == {"save": 1}


def test_ranks_that_have_submitted_less_lag(here, meet):
    meet(here, [])
    assert here.lagging() == []
    here.ledger.begin("a")
    assert here.lagging() == [1]


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("ends", -signal.SIGALRM),
        ("goes on", EXIT_CODE),
        ("trains on", 0),
        ("is stuck", EXIT_CODE),
    ],
)
def test_a_program_that_was_told_of_a_timeout_cannot_hang_in_horovod_afterwards(program, code):
    found = run_python("-c", STUCK, program)
    assert found.returncode == code, found
    assert "rank 0 waits for a since" in found.stderr


def test_reading_the_stack_does_not_end_the_process():
    check_stack_reading("hvd_sparse.watch.watchdog.lines_of_main_thread")


def test_an_error_in_the_join_of_horovods_package_alone_is_explained(monkeypatch):
    ops = "horovod.torch.mpi_ops"
    found = []
    for module, function in ((ops, "join"), (ops, "synchronize"), ("horovod_own.train", "join")):
        place = {"__name__": module}
        exec(f"def {function}(): raise RuntimeError", place)
        with pytest.raises(RuntimeError) as raised:
            place[function]()
        monkeypatch.setattr(sys, "last_traceback", raised.tb, raising=False)
        found.append(was_ended_by_join())
    assert found == [True, False, False]


HANG_S = 600.0
HERE = ["127.0.0.1"]


def endpoint_of(watchdog):
    """Return the address that a watchdog tells the other ranks."""
    told = []
    watchdog.meet(0, SimpleNamespace(tell_all=lambda mine: told.append(mine) or told))
    return told[0]


@pytest.fixture
def watched(here):
    return endpoint_of(here)


def is_answered(endpoint):
    return endpoint.rank in ask_all([endpoint], {"a": 1}, HANG_S)


def test_all_ranks_are_asked_at_once():
    all_are_asked = threading.Barrier(8)

    def answer(submitted):
        all_are_asked.wait()
        return Answer(0, [], "")

    ports = [Port(answer) for _ in range(8)]
    endpoints = [Endpoint(i, HERE, each.number, each.token) for i, each in enumerate(ports)]
    assert sorted(ask_all(endpoints, {}, HANG_S)) == list(range(8))
    for port in ports:
        port.close()


def test_a_question_that_was_lost_is_sent_again():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 0))
        answer = Answer(2, ["a"], "it is here")

        def serve():
            port.recv(1 << 16)  # and lose it
            said, caller = port.recvfrom(1 << 16)
            token = said[: peers.TOKEN_BYTES]
            port.sendto(b"something else", caller)
            port.sendto(token + json.dumps([2, ["a"], "it is here"]).encode(), caller)

        threading.Thread(target=serve, daemon=True).start()
        endpoint = Endpoint(1, HERE, port.getsockname()[1], "0" * peers.TOKEN_BYTES)
        assert ask_all([endpoint], {}, HANG_S) == {1: answer}


GARBAGE = [b"", b"0" * 16, b"0" * 32 + b'{"a": 1}', b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))]
NONSENSE = [b"", b'{"a": ', b"[" * 50_000, b"[]", b'{"a": "x"}', b"\xff\xfe"]


@pytest.mark.parametrize("knows", [False, True], ids=["a stranger", "a rank"])
def test_who_does_not_know_the_secret_or_talks_nonsense_is_not_answered(watched, knows):
    secret = watched.token.encode() if knows else b""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for said in NONSENSE if knows else GARBAGE:
            stranger.sendto(secret + said, ("127.0.0.1", watched.port))
            assert is_answered(watched)
        stranger.setblocking(False)  # an answer would be there: datagrams are taken in order
        with pytest.raises(BlockingIOError):
            stranger.recv(1)


def test_strangers_who_flood_a_port_do_not_keep_it_from_answering(watched):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        for _ in range(5_000):  # more than the system keeps
            stranger.sendto(b"x" * 1_000, ("127.0.0.1", watched.port))
    assert is_answered(watched)


def test_of_a_time_in_which_the_process_stood_still_little_counts(monkeypatch):
    """As of a process that was suspended, or whose lock a thread did not release."""
    own, here, reads = time, threading.current_thread(), iter([0.0, 0.25, 60.0, 60.25])

    def of_this_thread(here_too, elsewhere):
        return lambda *given: (
            here_too(*given) if threading.current_thread() is here else elsewhere(*given)
        )

    faked = {
        "monotonic": of_this_thread(lambda: next(reads), own.monotonic),
        "sleep": of_this_thread(lambda _: None, own.sleep),
    }
    monkeypatch.setattr(watchdogs, "time", SimpleNamespace(**faked))
    watchdog = Watchdog("faked", 0, None)
    with pytest.raises(StopIteration):
        watchdog._run(600.0)
    watchdog.close()
    assert watchdog.ledger.standstill.seconds == 0.25 + watchdogs.MOST_S + 0.25


@pytest.mark.parametrize("ends_by", ["abort", "close"])
def test_a_wait_that_is_aborted_or_whose_watchdog_is_closed_tells_what_was_waited_for(ends_by):
    watchdog, polls = Watchdog("patient", 7, None), []
    watchdog.ledger.begin("a")

    class Waiting:
        is_done = None

        def wait(self, timeout_s):
            polls.append((timeout_s, *watchdog.ledger.waits))
            assert len(polls) < 3, "the wait goes on"
            is_last, cause = len(polls) == 2, RuntimeError("Connection closed by peer")
            if is_last and ends_by == "close":
                watchdog.close()
            raise ExchangeTimeout("time") from (cause if is_last and ends_by == "abort" else None)

    words = "^time; rank 7 waits for a since 0 s; the other ranks are"
    with pytest.raises(ExchangeTimeout, match=words):
        PatientPending(Waiting(), "it", watchdog).wait(HANG_S)
    assert polls == [(watchdogs.TURN_S, "it")] * 2 and watchdog.ledger.waits == []
    watchdog.close()
