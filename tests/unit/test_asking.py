"""Ranks answer each other over UDP, nobody else; standstills are no part of a wait."""

import json
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import peers
from hvd_sparse.watch import watchdog as watchdogs
from hvd_sparse.watch.peers import Answer, Endpoint, Port, ask_all
from hvd_sparse.watch.watchdog import PatientPending, Watchdog

HANG_S = 600.0
HERE = ["127.0.0.1"]


def endpoint_of(watchdog):
    """Return the address that a watchdog tells the other ranks."""
    told = []
    watchdog.meet(0, SimpleNamespace(tell_all=lambda mine: told.append(mine) or told))
    return told[0]


@pytest.fixture
def watched():
    watchdog = Watchdog("watched", 0, None)
    yield endpoint_of(watchdog)
    watchdog.close()


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
