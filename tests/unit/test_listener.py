"""A listener answers ranks, and outlives whatever strangers say."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading

import pytest
from listeners import ANSWER, PATIENCE_S, listening

from hvd_sparse.watch.listener import MOST_STRANGERS
from hvd_sparse.watch.peers import Endpoint, Question, ask, ask_all
from hvd_sparse.watch.watchdog import Watchdog

NO_DESCRIPTORS = """
import os, resource, socket, time
from hvd_sparse.watch.peers import Question, ask
from hvd_sparse.watch.watchdog import Watchdog
endpoint = Watchdog("poor", 0, None).endpoint(0)
callers = [socket.socket() for _ in range(3)]
ask(endpoint, Question({}), 600)
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
print(ask(endpoint, Question({}), 600).state, flush=True)
os._exit(0)
"""


@pytest.fixture
def listen():
    """Starts listeners, and closes them."""
    with listening() as start:
        yield start


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
    with socket.create_connection(("127.0.0.1", watched.port), PATIENCE_S) as connection:
        with contextlib.suppress(OSError):  # it hangs up in the middle
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert ask(watched, Question({}), PATIENCE_S).state == "answers"


@pytest.mark.parametrize("said", TRUSTED.values(), ids=TRUSTED)
def test_a_listener_outlives_a_rank_that_talks_nonsense(watched, said):
    with socket.create_connection(("127.0.0.1", watched.port), PATIENCE_S) as connection:
        connection.sendall(watched.token.encode() + said)
        connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert ask(watched, Question({}), PATIENCE_S).state == "answers"


def test_strangers_who_hold_the_line_keep_no_rank_from_being_answered(watched):
    """In whatever number; the oldest are hung up on."""
    crowd = []
    try:
        for number in range(3 * MOST_STRANGERS):
            crowd.append(socket.create_connection(("127.0.0.1", watched.port), PATIENCE_S))
            if number % 3:
                crowd[-1].sendall(watched.token[: number % 32].encode())
        assert ask(watched, Question({}), PATIENCE_S).state == "answers"
        crowd[0].settimeout(PATIENCE_S)
        assert crowd[0].recv(1) == b"", "the first of them is gone"
    finally:
        for connection in crowd:
            connection.close()


def test_a_rank_that_does_not_read_its_answer_keeps_no_other_from_its_own(listen):
    endpoint = listen(0, lambda question: {**ANSWER, "place": "x" * (1 << 23)})
    with socket.create_connection(("127.0.0.1", endpoint.port), PATIENCE_S) as deaf:
        deaf.sendall(f'{endpoint.token}{{"submitted": {{}}, "process": null}}\n'.encode())
        for _ in range(3):
            assert len(ask(endpoint, Question({}), PATIENCE_S).place) == 1 << 23


def test_a_listener_outlives_the_lack_of_file_descriptors():
    found = subprocess.run([sys.executable, "-c", NO_DESCRIPTORS], capture_output=True, text=True)
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
        assert [answer.state for answer in ask_all([stranger], Question({}), PATIENCE_S)] == [
            "unreachable"
        ]


def test_all_ranks_are_asked_at_once_and_answer_in_order(listen):
    all_are_asked = threading.Barrier(8)

    def answer(question):
        all_are_asked.wait()
        return ANSWER

    endpoints = [listen(rank, answer) for rank in range(8)]
    answers = ask_all(endpoints, Question({}), PATIENCE_S)
    assert [(each.rank, each.state) for each in answers] == [(n, "answers") for n in range(8)]
