"""Ranks answer each other over UDP, nobody else; standstills are no part of a wait."""

import json
import socket
import threading
import time
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest

from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch import peers
from hvd_sparse.watch import watchdog as watchdogs
from hvd_sparse.watch.peers import Answer, Endpoint, Port, ask_all
from hvd_sparse.watch.watchdog import PatientPending, Watchdog

HANG_S = 600.0
SILENT_S = 0.2
HERE = ("127.0.0.1",)


@pytest.fixture
def watched():
    watchdog = Watchdog("watched", 0, None)
    yield watchdog.endpoint(0)
    watchdog.close()


def is_answered(endpoint):
    return endpoint.rank in ask_all([endpoint], {"a": 1}, HANG_S)


def test_all_ranks_are_asked_at_once():
    all_are_asked = threading.Barrier(8)

    def of(rank):
        def answer(submitted):
            all_are_asked.wait()
            return Answer(rank, 0, [], "")

        return answer

    ports = [Port(of(rank)) for rank in range(8)]
    endpoints = [Endpoint(i, HERE, each.number, each.token) for i, each in enumerate(ports)]
    assert sorted(ask_all(endpoints, {}, HANG_S)) == list(range(8))
    for port in ports:
        port.close()


def test_a_question_that_was_lost_is_sent_again():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as port:
        port.bind(("127.0.0.1", 0))
        answer = Answer(1, 2, ["a"], "it is here")

        def serve():
            port.recv(1 << 16)  # and lose it
            said, caller = port.recvfrom(1 << 16)
            mark = said[peers.TOKEN_BYTES : 2 * peers.TOKEN_BYTES]
            port.sendto(b"something else", caller)
            port.sendto(mark + json.dumps([1, 2, ["a"], "it is here"]).encode(), caller)

        threading.Thread(target=serve, daemon=True).start()
        endpoint = Endpoint(1, HERE, port.getsockname()[1], "0" * peers.TOKEN_BYTES)
        assert ask_all([endpoint], {}, HANG_S) == {1: answer}


GARBAGE = [b"", b"0" * 16, b"0" * 64 + b'{"a": 1}', b"GET / HTTP/1.1\r\n\r\n", bytes(range(256))]
NONSENSE = [b"", b'{"a": ', b"[" * 50_000, b"[]", b'{"a": "x"}', b"\xff\xfe"]


@pytest.mark.parametrize("knows", [False, True], ids=["a stranger", "a rank"])
def test_who_does_not_know_the_secret_or_talks_nonsense_is_not_answered(watched, knows):
    secret = watched.token.encode() + b"0" * 32 if knows else b""
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


def test_a_port_that_is_closed_is_silent():
    watchdog = Watchdog("closed", 0, None)
    endpoint = watchdog.endpoint(0)
    watchdog.close()
    while ask_all([endpoint], {}, SILENT_S):  # until its thread has seen it
        pass


def test_of_a_standstill_the_clock_counts_little(monkeypatch):
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
    monkeypatch.setattr(peers, "time", SimpleNamespace(**faked))
    clock = peers.RunningClock()
    with pytest.raises(StopIteration):
        clock._run()
    assert clock.now_s == 0.25 + peers.MOST_S + 0.25


LIMIT_S = 10.0


@pytest.mark.parametrize(
    ("ran_s", "is_silent", "limits_s"),
    [
        ([1.0, 1.0, 0.0], False, [10.0, 9.0, 8.0]),
        ([1.0, 9.0], False, [10.0, 9.0]),
        ([10.0, 5.0, 0.0], True, [10.0, 10.0, 5.0]),
        ([10.0, 10.0], True, [10.0, 10.0]),
    ],
    ids=["stood still", "at the limit", "a rank is silent", "at twice the limit"],
)
def test_a_wait_ends_by_the_clock_and_is_extended_once(ran_s, is_silent, limits_s, monkeypatch):
    clock, seen_s, left_s = SimpleNamespace(now_s=100.0), [], list(ran_s)
    monkeypatch.setattr(watchdogs, "clock", clock)

    class Waiting:
        is_done = None

        def wait(self, timeout_s):
            seen_s.append(timeout_s)
            ran_s = left_s.pop(0)
            clock.now_s += ran_s
            if ran_s:
                raise ExchangeTimeout("the time is over")
            return np.ones(2)

    watchdog = SimpleNamespace(has_silent_rank=lambda: is_silent, ledger=SimpleNamespace())
    pending = PatientPending(Waiting(), watchdog)
    with nullcontext() if 0.0 in ran_s else pytest.raises(ExchangeTimeout):
        assert pending.wait(LIMIT_S).tolist() == [1.0, 1.0]
    assert seen_s == limits_s


def test_a_clock_that_does_not_run_any_more_is_started_anew():
    clock = peers.RunningClock()
    clock._thread = threading.Thread(target=lambda: None)  # as after a fork
    clock.start()
    while not clock.now_s:
        time.sleep(peers.TURN_S)
