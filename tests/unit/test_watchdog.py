"""The watchdog's parts without Horovod: the ledger, the questions that ranks ask each other, what
is said of them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import worlds

from hvd_sparse.core.step.driver import Conversation
from hvd_sparse.resilience import peers
from hvd_sparse.resilience.ledger import Ledger
from hvd_sparse.resilience.listener import MOST_STRANGERS, Listener
from hvd_sparse.resilience.peers import Endpoint, Question, ask, ask_all, introduce
from hvd_sparse.resilience.process_state import (
    ProcessState,
    judge,
    look_at,
    process_from_json,
    process_to_json,
    this_process,
)
from hvd_sparse.resilience.stack import is_in_join, place_of_main_thread
from hvd_sparse.resilience.watchdog import EXIT_CODE, Watchdog

ANSWER = {
    "behind": ["a"],
    "pending": 2,
    "place": "train.py:3 (step)",
    "is_joined": False,
    "stood_s": 0,
}

OTHER_PROCESS = """
import ctypes, json, re, sys, time
from hvd_sparse.resilience.process_state import process_to_json
from hvd_sparse.resilience.watchdog import Watchdog
endpoint = Watchdog("other", 5, None).endpoint(5)
print(json.dumps([endpoint.port, endpoint.token, process_to_json(endpoint.process)]), flush=True)
holding = {
    "matches": lambda: re.match("(a+)+$", "a" * 40 + "b"),  # for hours
    "sleeps": lambda: ctypes.PyDLL(None).sleep(60),
    "nothing": lambda: time.sleep(60),
}
holding[sys.stdin.readline().strip()]()
"""


STUCK = """
import atexit, sys, time
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.resilience import stack, watchdog
atexit.register(time.sleep, 60)  # as Horovod's own end, which waits for the other ranks
watchdog.GRACE_S = stack.END_S = 1
stuck = watchdog.Watchdog("stuck", 0, 1.0)
stuck.ledger.begin("a")
try:
    raise ExchangeTimeout(stuck.give_up())
except ExchangeTimeout:
    if sys.argv[1] == "ends":
        raise
    time.sleep(60)
"""


NO_DESCRIPTORS = """
import os, resource, socket, time
from hvd_sparse.resilience.peers import Question, ask
from hvd_sparse.resilience.watchdog import Watchdog
endpoint = Watchdog("poor", 0, None).endpoint(0)
callers = [socket.socket() for _ in range(3)]
ask(endpoint, Question({}), 5)
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
for caller in callers:
    caller.connect(("127.0.0.1", endpoint.port))
    caller.sendall(b"nothing of the kind")
time.sleep(1.0)  # the listener finds that it can take nobody
for each in taken:
    os.close(each)
print(ask(endpoint, Question({}), 5).state, flush=True)
os._exit(0)
"""


@pytest.fixture
def listen():
    """Starts listeners, and closes them."""
    made = []

    def start(rank=0, answer=lambda question: ANSWER):
        made.append(Listener(answer))
        return Endpoint(rank, socket.gethostname(), (), made[-1].port, made[-1].token)

    yield start
    for listener in made:
        listener.close()


class Other:
    """A watched process of its own."""

    def __init__(self, rank=5):
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER_PROCESS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        port, token, process = json.loads(self.process.stdout.readline())
        self.endpoint = Endpoint(
            rank, socket.gethostname(), (), port, token, process_from_json(process)
        )

    def do(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()

    def stop(self):
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # returns when it has stopped

    def end(self):
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def start_other():
    """Starts processes, and ends them."""
    made = []

    def start(rank=5):
        made.append(Other(rank))
        return made[-1]

    yield start
    for other in made:
        other.end()


def test_a_ledger_knows_what_is_pending_since_when_and_how_often():
    ledger = Ledger()
    ledger.begin("a")
    time.sleep(0.02)
    ledger.begin("b")
    assert list(ledger.pending()) == ["a", "b"]
    assert ledger.pending(older_than_s=60) == {}
    assert 0.02 <= ledger.oldest_s() < 5
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


def test_a_rank_answers_what_it_is_asked(listen):
    asked = []
    endpoint = listen(3, lambda question: asked.append(question) or ANSWER)
    answer = ask(endpoint, Question({"a": 4, "b": 1}, 2.5))
    assert (answer.rank, answer.state, answer.behind, answer.pending) == (3, "answers", ("a",), 2)
    assert answer.place == ANSWER["place"]
    assert asked == [{"submitted": {"a": 4, "b": 1}, "waited_s": 2.5, "process": None}]


def test_whoever_does_not_know_the_secret_learns_nothing(listen):
    endpoint = listen()
    stranger = Endpoint(0, endpoint.host, (), endpoint.port, "0" * 32)
    assert ask(stranger, Question({})).state == "unreachable"
    assert ask(endpoint, Question({})).state == "answers"


BRACKETS = b"[" * 100_000
GARBAGE = {
    "nothing": b"",
    "an empty line": b"\n",
    "brackets": BRACKETS + b"\n",
    "brackets without end": BRACKETS,
    "braces": b'{"a":' * 100_000 + b"\n",
    "binary": bytes(range(256)) * 4096,
    "digits": b"9" * 5000,
    "half a token": b"0" * 16,
    "another token": b"0" * 32 + b'{"submitted": {}, "process": null}\n',
    "a request of the web": b"GET / HTTP/1.1\r\n\r\n",
}
TRUSTED = {
    "nothing": b"",
    "half a line": b'{"submitted": {',
    "brackets": BRACKETS + b"\n",
    "no mapping": b"[]\n",
    "no question": b"{}\n",
    "no counts": b'{"submitted": 3, "process": null}\n',
    "no numbers": b'{"submitted": {"a": "x"}, "process": null}\n',
    "no process": b'{"submitted": {}, "process": 3}\n',
    "no letters": b"\xff\xfe\n",
}


@pytest.fixture
def watched():
    """A watchdog that nobody winds, and where it listens."""
    watchdog = Watchdog("watched", 0, None)
    yield watchdog.endpoint(0)
    watchdog.close()


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
def test_a_listener_outlives_whatever_strangers_say_and_answers_nothing(watched, said):
    with socket.create_connection(("127.0.0.1", watched.port), 5) as connection:
        with contextlib.suppress(OSError):  # it hangs up in the middle
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert ask(watched, Question({}), 5).state == "answers"


@pytest.mark.parametrize("said", TRUSTED.values(), ids=TRUSTED)
def test_a_listener_outlives_a_rank_that_talks_nonsense(watched, said):
    with socket.create_connection(("127.0.0.1", watched.port), 5) as connection:
        connection.sendall(watched.token.encode() + said)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert ask(watched, Question({}), 5).state == "answers"


def test_strangers_who_hold_the_line_keep_no_rank_from_being_answered(watched):
    """In whatever number; the oldest are hung up on."""
    crowd = []
    try:
        for number in range(3 * MOST_STRANGERS):
            crowd.append(socket.create_connection(("127.0.0.1", watched.port), 5))
            if number % 3:
                crowd[-1].sendall(watched.token[: number % 32].encode())
        assert ask(watched, Question({}), 5).state == "answers"
        crowd[0].settimeout(5)
        assert crowd[0].recv(1) == b"", "the first of them is gone"
    finally:
        for connection in crowd:
            connection.close()


@pytest.mark.timeout(60)
def test_a_rank_that_does_not_read_its_answer_keeps_no_other_from_its_own(listen):
    endpoint = listen(0, lambda question: {**ANSWER, "place": "x" * (1 << 23)})
    with socket.create_connection(("127.0.0.1", endpoint.port), 5) as deaf:
        deaf.sendall(f'{endpoint.token}{{"submitted": {{}}, "process": null}}\n'.encode())
        for _ in range(3):
            assert len(ask(endpoint, Question({}), 20).place) == 1 << 23


@pytest.mark.timeout(60)
def test_a_listener_outlives_the_lack_of_file_descriptors():
    found = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True, timeout=50
    )
    assert (found.returncode, found.stdout) == (0, "answers\n"), found.stderr


@pytest.mark.parametrize(
    "said", [b"[]\n", b"{}\n", b"[" * 100_000 + b"\n", b"\xff\n", b"half", b'{"behind": 3}\n']
)
def test_whoever_asks_outlives_what_somebody_elses_port_says(said):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            for _ in range(2):  # whoever hangs up is asked twice
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        stranger = Endpoint(4, socket.gethostname(), (), server.getsockname()[1], "0" * 32)
        assert [answer.state for answer in ask_all([stranger], Question({}), 5)] == ["unreachable"]


def test_all_ranks_are_asked_at_once_and_answer_in_order(listen):
    endpoints = [listen(rank, lambda question: time.sleep(0.2) or ANSWER) for rank in range(8)]
    start = time.monotonic()
    assert [answer.rank for answer in ask_all(endpoints, Question({}))] == list(range(8))
    assert time.monotonic() - start < 8 * 0.2


def test_a_process_that_runs_one_that_is_paused_and_one_that_has_ended_are_told_apart(start_other):
    other = start_other()
    assert ask(other.endpoint, Question({"a": 1}), 5).behind == ("a",)
    other.stop()
    assert ask(other.endpoint, Question({}), 0.5).state == "paused"
    other.process.send_signal(signal.SIGCONT)
    assert ask(other.endpoint, Question({}), 5).state == "answers"
    other.end()
    assert ask(other.endpoint, Question({}), 5).state == "ended"


def until_silent(other):
    """Whoever holds Python's lock answers nothing: that is when it holds it."""
    for _ in range(100):
        if ask(other.endpoint, Question({}), 0.3).state != "answers":
            return
    raise AssertionError("it never took the lock")


@pytest.mark.timeout(120)
@pytest.mark.parametrize("holding", ["matches", "sleeps"])
def test_a_process_that_holds_pythons_lock_is_not_taken_for_one_that_is_paused(
    start_other, holding
):
    """Neither where it computes nor where it sleeps; but it is, once it is paused."""
    other = start_other()
    other.do(holding)
    until_silent(other)
    assert ask(other.endpoint, Question({}), 1.0).state == "busy"
    other.stop()
    assert ask(other.endpoint, Question({}), 1.0).state == "paused"


@pytest.mark.timeout(120)
def test_of_a_process_on_another_host_the_ranks_there_are_asked(start_other, monkeypatch):
    neighbour, busy, paused = start_other(1), start_other(2), start_other(3)
    neighbour.do("nothing")
    busy.do("matches")
    until_silent(busy)
    paused.stop()
    monkeypatch.setattr(
        peers, "look_at", lambda process: None
    )  # as from elsewhere; the neighbour has its own eyes
    everybody = [each.endpoint for each in (neighbour, busy, paused)]
    assert [answer.state for answer in ask_all(everybody, Question({}), 1.0)] == [
        "answers",
        "busy",
        "paused",
    ]
    assert [answer.state for answer in ask_all(everybody[1:], Question({}), 1.0)] == [
        "silent",
        "silent",
    ]


def test_what_the_kernel_says_is_of_that_very_process():
    here = this_process()
    assert look_at(here).state in "RS"
    assert look_at(replace(here, start=here.start + 1)) is None, "another had the number before"
    assert look_at(replace(here, system="elsewhere")) is None
    assert look_at(None) is None
    assert process_from_json(json.loads(json.dumps(process_to_json(here)))) == here
    assert process_from_json(process_to_json(None)) is None


@pytest.mark.parametrize(
    ("before", "after", "state"),
    [
        (ProcessState("R", (1, 0)), ProcessState("S", (1, 5)), "busy"),
        (ProcessState("R", (1, 5)), ProcessState("S", (1, 0)), "busy"),  # a thread ended in between
        (
            ProcessState("S", (1, 5)),
            ProcessState("S", (1, 5)),
            "paused",
        ),  # frozen: no thread had a moment
        (ProcessState("R", (1, 5)), ProcessState("T", (1, 6)), "paused"),
        (ProcessState("R", (1, 5)), ProcessState("t", (1, 6)), "paused"),
        (ProcessState("R", (1, 5)), ProcessState("Z", (1, 6)), "ended"),
        (None, ProcessState("R", (1, 5)), "silent"),
        (ProcessState("R", (1, 5)), None, "silent"),
    ],
)
def test_two_looks_tell_what_became_of_a_silent_process(before, after, state):
    assert judge(before, after) == state


def test_a_forked_child_does_not_keep_its_parents_port():
    watchdog = Watchdog("parent", 0, None)
    endpoint = watchdog.endpoint(0)
    child = os.fork()
    if not child:
        time.sleep(20)
        os._exit(0)
    try:
        watchdog.close()
        assert ask(endpoint, Question({}), 2).state == "ended"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


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
    found = subprocess.run(
        [sys.executable, "-c", STUCK, program], capture_output=True, text=True, timeout=30
    )
    assert found.returncode == code, found
    assert "ExchangeTimeout: rank 0 waits for a since" in found.stderr


def _free_port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def test_the_place_is_the_programs_own_innermost_line():
    """As another thread sees it."""
    told = []
    thread = threading.Thread(target=lambda: told.extend([place_of_main_thread(), is_in_join()]))
    thread.start()
    thread.join()
    place, is_joined = told
    assert re.search(
        rf"threading.py:\d+ \(\w+\), called by {re.escape(__file__)}:\d+ \(test_the_place", place
    )
    assert not is_joined  # that was a thread's join
