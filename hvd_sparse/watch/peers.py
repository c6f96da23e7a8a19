"""Questions to the other ranks about what they are doing, for when Horovod does not answer.

Every rank listens on a TCP port of its own (``watch.listener``), in a thread that Horovod's
waits do not hold up, and answers which tensors it has submitted.  The ranks exchange their
addresses in one allgather while Horovod still works.  A rank that has ended refuses the connection.
A paused rank takes the connection (its operating system does) and says nothing, and so does a rank
whose code holds Python's lock.  For these two the operating system is asked
(``watch.process_state``), by this rank or by another rank on the silent one's host.

Questions and answers are one line of JSON each.  A question begins with a secret of the rank that
it asks, drawn anew in every process and known to the other ranks alone.  Nothing that arrives is
run or stored.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hvd_sparse.collectives.contract import AllGather
from hvd_sparse.watch.calls import call
from hvd_sparse.watch.listener import PATIENCE_S, Line
from hvd_sparse.watch.process_state import (
    Process,
    ProcessState,
    judge,
    look_at,
    process_from_json,
    process_to_json,
)

ASKED_AT_ONCE = 32
LOOKS_APART_S = 1.0
"""Seconds between two looks at a process, in which a running one uses some processor time."""


@dataclass(frozen=True)
class Endpoint:
    """The address at which a rank listens, and its process.

    Attributes
    ----------
    rank : the rank
    host : name of its host
    addresses : IPv4 addresses of its host
    port : TCP port of its listener
    token : secret with which a question to it begins
    process : its process; None where the system has no ``/proc``
    """

    rank: int
    host: str
    addresses: tuple[str, ...]
    port: int
    token: str
    process: Process | None = None


@dataclass(frozen=True)
class Answer:
    """A rank's answer to a question, or the reason why there is none.

    Attributes
    ----------
    rank : the rank that was asked
    state : "answers", "ended" (refuses connections) or "unreachable"; of a rank that takes
        connections and says nothing "paused" or "busy" (runs, but something in it holds Python's
        lock), or "silent" if nobody can tell which
    behind : tensors that the asking rank has submitted and it has not
    place : line of its program that its main thread is at
    pending : number of tensors that it waits for itself
    is_joined : it is inside hvd.join()
    stood_s : seconds for which its process stood still, suspended or with Python's lock held, in
        the time asked about
    seen : state of the process that it was asked to look at
    tried : addresses at which it was asked
    """

    rank: int
    state: str
    behind: tuple[str, ...] = ()
    place: str = ""
    pending: int = 0
    is_joined: bool = False
    stood_s: float = 0.0
    seen: ProcessState | None = None
    tried: tuple[str, ...] = field(default=(), compare=False)


def introduce(endpoint: Endpoint) -> Generator[AllGather, np.ndarray, list[Endpoint]]:
    """Exchange the addresses of all ranks: a generator of collectives, as exchanges are.

    Parameters
    ----------
    endpoint : this rank's

    Returns
    -------
    The endpoints of all ranks, in rank order
    """
    told = [
        endpoint.rank,
        endpoint.host,
        endpoint.addresses,
        endpoint.port,
        endpoint.token,
        process_to_json(endpoint.process),
    ]
    gathered = yield AllGather(np.frombuffer(json.dumps(told).encode() + b"\n", np.uint8))
    return [_endpoint_of(*json.loads(line)) for line in gathered.tobytes().splitlines()]


def _endpoint_of(
    rank: int,
    host: str,
    addresses: list[str],
    port: int,
    token: str,
    process: list[str | int] | None,
) -> Endpoint:
    return Endpoint(rank, host, tuple(addresses), port, token, process_from_json(process))


@dataclass(frozen=True)
class Question:
    """A question to a rank.

    Attributes
    ----------
    submitted : tensors by name, and how often the asking rank has submitted each
    waited_s : seconds for which the asking rank has waited for them
    process : process that the answering rank is to look at
    """

    submitted: dict[str, int]
    waited_s: float = 0.0
    process: Process | None = None

    def line(self, token: str) -> bytes:
        """Return the bytes to send to the rank whose secret is ``token``."""
        told = {
            "submitted": self.submitted,
            "waited_s": self.waited_s,
            "process": process_to_json(self.process),
        }
        return f"{token}{json.dumps(told)}\n".encode()


def ask_all(
    endpoints: Sequence[Endpoint], question: Question, patience_s: float = PATIENCE_S
) -> list[Answer]:
    """Ask all ranks at once; takes at most a small multiple of ``patience_s``.

    Parameters
    ----------
    endpoints : of the ranks to ask
    question : the same for all of them
    patience_s : seconds for which one connection may take

    Returns
    -------
    The answers, in the order of ``endpoints``
    """
    answers: dict[int, Answer] = {}
    left = list(enumerate(endpoints))

    def work() -> None:
        while left:
            with contextlib.suppress(IndexError):  # another thread took the last one
                place, endpoint = left.pop()
                answers[place] = ask(endpoint, question, patience_s)

    # No concurrent.futures pool: pools refuse work once the interpreter begins to end, and Horovod
    # hangs there too.
    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(ASKED_AT_ONCE, len(left)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _seen_by_others(endpoints, [answers[place] for place in sorted(answers)], patience_s)


def _seen_by_others(
    endpoints: Sequence[Endpoint], answers: list[Answer], patience_s: float
) -> list[Answer]:
    """Return the answers, where a rank on the same host says what became of a silent rank."""
    found = list(answers)
    for place, (endpoint, answer) in enumerate(zip(endpoints, answers)):
        if answer.state != "silent" or endpoint.process is None:
            continue
        near = (
            other
            for other, its in zip(endpoints, answers)
            if its.state == "answers"
            and other.process is not None
            and other.process.system == endpoint.process.system
        )
        neighbour = next(near, None)
        if neighbour is not None:
            look = Question({}, process=endpoint.process)
            # Two looks, some time apart: one cannot tell a busy process from a frozen one.
            before = ask(neighbour, look, patience_s).seen
            time.sleep(LOOKS_APART_S)
            after = ask(neighbour, look, patience_s).seen
            found[place] = replace(answer, state=judge(before, after))
    return found


def ask(endpoint: Endpoint, question: Question, patience_s: float = PATIENCE_S) -> Answer:
    """Ask one rank, at each of its addresses in turn until one answers.

    Parameters
    ----------
    endpoint : of the rank
    question : what it is asked
    patience_s : seconds for which one connection may take
    """
    line = question.line(endpoint.token)
    nearby = ["127.0.0.1"] if endpoint.host == socket.gethostname() else []
    before = look_at(endpoint.process)  # the first of two looks; the wait lies between them
    states, tried = {"unreachable"}, []
    for address in [*nearby, *endpoint.addresses]:
        tried.append(f"{address}:{endpoint.port}")
        heard = call(address, endpoint.port, line, patience_s)
        if isinstance(heard, str):
            states.add(heard)
            if heard == "silent" and endpoint.process is not None and before is not None:
                break  # its process can be looked at, which tells more than another address
            continue
        try:
            return _answer_of(endpoint.rank, json.loads(heard), tuple(tried))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # another program listens at this port
    # Whoever takes connections lives, and whoever refuses them has ended: in this order.
    state = next(each for each in ("silent", "ended", "unreachable") if each in states)
    if state == "silent":
        state = judge(before, look_at(endpoint.process))
    return Answer(endpoint.rank, state, tried=tuple(tried))


def _answer_of(rank: int, said: Line, tried: tuple[str, ...]) -> Answer:
    seen = said.get("sight")
    return Answer(
        rank,
        "answers",
        tuple(map(str, said["behind"])),
        str(said["place"]),
        int(said["pending"]),
        bool(said["is_joined"]),
        float(said["stood_s"]),
        None if seen is None else ProcessState(str(seen[0]), tuple(map(int, seen[1]))),
        tried,
    )
