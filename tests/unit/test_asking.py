"""Ranks answer each other over UDP, nobody else, and stand still for a while unharmed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
import worlds
from harness import slow

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.watch import peers
from hvd_sparse.watch.peers import Answer, Endpoint, Port, addresses, ask_all, introduce
from hvd_sparse.watch.watchdog import EXIT_CODE, Watchdog

HANG_S = 600.0
SILENT_S = 0.2
HERE = ("127.0.0.1",)

OTHER_PROCESS = """
import ctypes, json, sys, time
from dataclasses import astuple
from hvd_sparse.watch.watchdog import Watchdog
endpoint = Watchdog("other", 5, None).endpoint(5)
print(json.dumps(astuple(endpoint)), flush=True)

doing = {
    "sleeps": lambda: time.sleep(3600),
    "holds the lock": lambda: ctypes.PyDLL(None).sleep(3600),
}
doing[sys.stdin.readline().strip()]()
"""


def begin(program, *arguments):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", program, *arguments], **pipes, text=True)


class Other:
    def __init__(self):
        self.process = begin(OTHER_PROCESS)
        rank, where, port, token = json.loads(self.read())
        self.endpoint = Endpoint(rank, tuple(where), port, token)

    def do(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def read(self):
        return self.process.stdout.readline()

    def answers(self, patience_s=HANG_S):
        return 5 in ask_all([self.endpoint], {"a": 1}, patience_s)

    def end(self):
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def other():
    made = Other()
    yield made
    made.end()


@pytest.fixture
def watched():
    watchdog = Watchdog("watched", 0, None)
    yield watchdog.endpoint(0)
    watchdog.close()


@pytest.fixture
def listen():
    made = []

    def start(rank, answer=lambda submitted: None):
        made.append(Port(answer))
        return Endpoint(rank, HERE, made[-1].number, made[-1].token)

    yield start
    for port in made:
        port.close()


def is_answered(endpoint):
    return endpoint.rank in ask_all([endpoint], {"a": 1}, HANG_S)


def test_a_rank_answers_what_it_is_asked(listen):
    asked = []
    answer = Answer(3, 7, ["a"], "it is at train.py:3 (step)")
    endpoint = listen(3, lambda submitted: asked.append(submitted) or answer)
    assert ask_all([endpoint], {"a": 4, "b": 1}, HANG_S) == {3: answer}
    assert asked == [{"a": 4, "b": 1}]


def test_ranks_introduce_themselves_in_rank_order(listen):
    endpoints = [listen(rank) for rank in range(3)]

    def on_rank(collective):
        return introduce(endpoints[collective.rank], Gatherer(collective, "meet", HANG_S))

    assert worlds.run(3, on_rank) == [endpoints] * 3
    assert "127.0.0.1" in addresses()


def test_all_ranks_are_asked_at_once(listen):
    all_are_asked = threading.Barrier(8)

    def of(rank):
        def answer(submitted):
            all_are_asked.wait()
            return Answer(rank, 0, [], "")

        return answer

    endpoints = [listen(rank, of(rank)) for rank in range(8)]
    assert sorted(ask_all(endpoints, {}, HANG_S)) == list(range(8))


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


@pytest.mark.parametrize("what", ["stopped", "holds the lock"])
def test_a_process_that_is_stopped_or_holds_pythons_lock_is_silent(other, what):
    assert other.answers()
    if what == "stopped":
        other.process.send_signal(signal.SIGSTOP)
        os.waitpid(other.process.pid, os.WUNTRACED)  # returns when it has stopped
        assert not other.answers(SILENT_S)
        other.process.send_signal(signal.SIGCONT)
        assert other.answers()
    else:
        other.do(what)
        while other.answers(SILENT_S):  # until it has the lock
            pass


def test_a_process_that_has_ended_or_a_port_that_is_closed_is_silent(other):
    other.end()
    assert not other.answers(SILENT_S)
    watchdog = Watchdog("closed", 0, None)
    endpoint = watchdog.endpoint(0)
    watchdog.close()
    while ask_all([endpoint], {}, SILENT_S):  # until its thread has seen it
        pass


LIMIT_S = slow(3.0)

WAITS = """
import ctypes, sys, threading, time
import numpy as np
from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.watch.watchdog import PatientCollective, Watchdog

limit_s = float(sys.argv[1])

def notice():
    read_s = time.monotonic()
    while time.monotonic() - read_s < limit_s:
        read_s = time.monotonic()
        time.sleep(0.01)
    print("stood still", flush=True)

threading.Thread(target=notice, daemon=True).start()

def on_rank(collective):
    watchdog = Watchdog("w", collective.rank, limit_s)
    watchdog.ledger.begin("a")
    if not collective.rank:
        print("waits", flush=True)
    elif sys.stdin.readline() == "locks\\n":
        ctypes.PyDLL(None).sleep(int(2 * limit_s))  # for all threads
        sys.stdin.readline()
    total = PatientCollective(collective, watchdog).allreduce(np.ones(2), "a").wait(limit_s)
    watchdog.ledger.end("a")
    return total.tolist()

print(LocalWorld(2, timeout_s=1200).run(on_rank), flush=True)
"""


@pytest.fixture
def waiting():
    process = begin(WAITS, str(LIMIT_S))
    assert process.stdout.readline() == "waits\n"
    yield process
    process.kill()
    process.communicate()


def suspend(process):
    process.send_signal(signal.SIGSTOP)
    time.sleep(2 * LIMIT_S)
    process.send_signal(signal.SIGCONT)


def lock(process):
    process.stdin.write("locks\n")
    process.stdin.flush()


@pytest.mark.parametrize("stand_still", [suspend, lock])
def test_a_process_that_stood_still_for_longer_than_the_limit_waits_on(waiting, stand_still):
    stand_still(waiting)
    assert waiting.stdout.readline() == "stood still\n"
    output, _ = waiting.communicate("goes on\n")
    assert (waiting.returncode, output) == (0, "[[2.0, 2.0], [2.0, 2.0]]\n")


def test_the_limit_holds_after_a_standstill_too(waiting):
    suspend(waiting)
    waiting.stdout.read()
    assert waiting.wait() in (1, EXIT_CODE)  # of the wait, or of the watchdog


def test_a_clock_that_does_not_run_any_more_is_started_anew():
    clock = peers.RunningClock()
    clock._thread = threading.Thread(target=lambda: None)  # as after a fork
    clock.start()
    while not clock.now_s:
        time.sleep(peers.TURN_S)
