"""Asking the other ranks what they are doing, when nothing in Horovod answers any more.

Every rank listens on a TCP port of its own (``resilience.listening``), in a thread that Horovod's
waits do not hold up, and says which tensors it has submitted.  Addresses are told in one allgather
while Horovod works.  A rank that has ended refuses the connection.  One that is paused takes it
(its kernel does) and says nothing, and so does one whose code holds Python's lock: of these the
kernel is asked (``resilience.sight``), by this rank or by another on the silent one's host.

Questions and answers are one line of JSON.  A question begins with a secret of the rank that it
asks, drawn anew in every process and told to the other ranks alone; nothing that arrives is run or
stored.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import AllGather
from hvd_sparse.resilience.listening import CHUNK_BYTES, LONGEST_LINE, PATIENCE_S
from hvd_sparse.resilience.sight import Process, Sight, judge, look_at, process_of, tell

ASKED_AT_ONCE = 32
LOOKS_APART_S = 1.0
"""Between two looks at a process that ought to move."""
SHORTEST_S = 0.01
TRIES = 2
"""At an address that hangs up: it does so on strangers in a crowd, before it knows who calls."""


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens, and its process."""

    rank: int
    host: str
    addresses: tuple[str, ...]
    port: int
    token: str
    process: Process | None = None


@dataclass(frozen=True)
class Answer:
    """What became of asking a rank.

    Attributes
    ----------
    state : "answers", "ended" (refuses connections) or "unreachable"; of those that take
        connections and say nothing "paused" or "busy" (runs, but something in it holds Python's
        lock), or "silent" if nobody can tell which
    behind : tensors that it has not submitted and the asking rank has
    place : where in its program it is
    pending : how many tensors it waits for itself
    is_joined : it is inside hvd.join()
    stood_s : for how long its process stood still, suspended or with Python's lock held, in the
        time asked about
    sight : what it sees of the process that it was asked to look at
    """

    rank: int
    state: str
    behind: tuple[str, ...] = ()
    place: str = ""
    pending: int = 0
    is_joined: bool = False
    stood_s: float = 0.0
    sight: Sight | None = None
    tried: tuple[str, ...] = field(default=(), compare=False)


def introduce(endpoint: Endpoint) -> Generator[AllGather, np.ndarray, list[Endpoint]]:
    """Tell all ranks where this one listens: a conversation as exchanges hold them.  The endpoints
    in rank order."""
    told = [
        endpoint.rank,
        endpoint.host,
        endpoint.addresses,
        endpoint.port,
        endpoint.token,
        tell(endpoint.process),
    ]
    gathered = yield AllGather(np.frombuffer(json.dumps(told).encode() + b"\n", np.uint8))
    return [_endpoint_of(*json.loads(line)) for line in gathered.tobytes().splitlines()]


def _endpoint_of(
    rank: int, host: str, addresses: list[str], port: int, token: str, process: Any
) -> Endpoint:
    return Endpoint(rank, host, tuple(addresses), port, token, process_of(process))


@dataclass(frozen=True)
class Question:
    """A question to a rank.

    Attributes
    ----------
    submitted : tensors, and how often the asking rank has submitted each
    waited_s : for how long it has waited for them
    process : that is to be looked at
    """

    submitted: dict[str, int]
    waited_s: float = 0.0
    process: Process | None = None

    def line(self, token: str) -> bytes:
        """Return what is sent to the rank of that secret."""
        told = {
            "submitted": self.submitted,
            "waited_s": self.waited_s,
            "process": tell(self.process),
        }
        return f"{token}{json.dumps(told)}\n".encode()


def ask_all(
    endpoints: Sequence[Endpoint], question: Question, patience_s: float = PATIENCE_S
) -> list[Answer]:
    """What every rank has of what this one has submitted; bounded by a small multiple of
    ``patience_s``."""
    answers: dict[int, Answer] = {}
    left = list(enumerate(endpoints))

    def work() -> None:
        while left:
            with contextlib.suppress(IndexError):
                place, endpoint = left.pop()
                answers[place] = ask(endpoint, question, patience_s)

    # no pool of the library's: those refuse work once the interpreter begins to end, where hangs
    # happen too
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
    """The answers, with the word of ranks on the same host for those that this one cannot see."""
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
            before = ask(neighbour, look, patience_s).sight
            time.sleep(LOOKS_APART_S)
            after = ask(neighbour, look, patience_s).sight
            found[place] = replace(answer, state=judge(before, after))
    return found


def ask(endpoint: Endpoint, question: Question, patience_s: float = PATIENCE_S) -> Answer:
    """Ask one rank, at each of its addresses until one answers."""
    line = question.line(endpoint.token)
    nearby = ["127.0.0.1"] if endpoint.host == socket.gethostname() else []
    before = look_at(endpoint.process)
    states, tried = {"unreachable"}, []
    for address in [*nearby, *endpoint.addresses]:
        tried.append(f"{address}:{endpoint.port}")
        heard = _call(address, endpoint.port, line, patience_s)
        if isinstance(heard, str):
            states.add(heard)
            if heard == "silent" and endpoint.process is not None and before is not None:
                break  # the kernel knows more than another address
            continue
        try:
            return _answer_of(endpoint.rank, json.loads(heard), tuple(tried))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue  # somebody else's port
    state = next(each for each in ("silent", "ended", "unreachable") if each in states)
    if state == "silent":
        state = judge(before, look_at(endpoint.process))
    return Answer(endpoint.rank, state, tried=tuple(tried))


def _call(address: str, port: int, line: bytes, patience_s: float) -> bytes | str:
    """Return what is said at an address, or why nothing is: "silent", "ended" or "unreachable"."""
    for _ in range(TRIES):
        try:
            connection = socket.create_connection((address, port), patience_s)
        except ConnectionRefusedError:
            return "ended"
        except OSError:  # no way there, or nobody takes it
            return "unreachable"
        with connection:
            try:
                connection.sendall(line)
                return _read_line(connection, patience_s)
            except TimeoutError:
                return "silent"
            except (OSError, ValueError):
                continue
    return "unreachable"


def _answer_of(rank: int, said: dict[str, Any], tried: tuple[str, ...]) -> Answer:
    sight = said.get("sight")
    return Answer(
        rank,
        "answers",
        tuple(map(str, said["behind"])),
        str(said["place"]),
        int(said["pending"]),
        bool(said["is_joined"]),
        float(said["stood_s"]),
        None if sight is None else Sight(str(sight[0]), tuple(map(int, sight[1]))),
        tried,
    )


def _read_line(connection: socket.socket, patience_s: float) -> bytes:
    """All of it within the time, however small the pieces are."""
    end_s, line = time.monotonic() + patience_s, bytearray()
    while not line.endswith(b"\n"):
        connection.settimeout(max(SHORTEST_S, end_s - time.monotonic()))
        part = connection.recv(CHUNK_BYTES)
        line += part
        if not part or len(line) > LONGEST_LINE:
            raise ValueError("no whole line arrived")
        if time.monotonic() > end_s:
            raise TimeoutError
    return bytes(line)


def addresses() -> tuple[str, ...]:
    """Return this machine's IPv4 addresses, as others might reach them."""
    try:
        import psutil  # type: ignore[import-untyped] # Horovod depends on it
    except ImportError:
        found = [
            str(info[4][0])
            for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        ]
    else:
        interfaces = psutil.net_if_addrs().values()
        found = [
            a.address for addresses in interfaces for a in addresses if a.family == socket.AF_INET
        ]
    return tuple(sorted({address for address in found if not address.startswith("127.")}))
