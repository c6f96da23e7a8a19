"""Asking the other ranks what they are doing, when nothing in Horovod answers any more.

Every rank listens on a TCP port of its own, in a thread that Horovod's waits do not hold up, and
says which tensors it has submitted.  Addresses are told in one allgather while Horovod works.  A
rank that is paused takes the connection (its kernel does) and says nothing; one that has ended
refuses it.  So the three can be told apart.

Requests and answers are one line of JSON.  A request names a secret of the rank that it asks, drawn
anew in every process and told to the other ranks alone; nothing that arrives is run or stored.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np

from hvd_sparse.collectives.contract import AllGather

LONGEST_LINE = 1 << 20
PATIENCE_S = 10.0
"""For a line to arrive, either way."""
ASKED_AT_ONCE = 32

_OPEN: weakref.WeakSet[Listener] = weakref.WeakSet()


@dataclass(frozen=True)
class Endpoint:
    """Where a rank listens."""

    rank: int
    host: str
    addresses: tuple[str, ...]
    port: int
    token: str


@dataclass(frozen=True)
class Answer:
    """What became of asking a rank.

    Attributes
    ----------
    state : "answers", "paused" (takes connections and says nothing), "ended" (refuses them) or
        "unreachable"
    behind : tensors that it has not submitted and the asking rank has
    place : where in its program it is
    pending : how many tensors it waits for itself
    is_joined : it is inside hvd.join()
    """

    rank: int
    state: str
    behind: tuple[str, ...] = ()
    place: str = ""
    pending: int = 0
    is_joined: bool = False
    tried: tuple[str, ...] = field(default=(), compare=False)


class Listener:
    """Answers the other ranks' questions in a thread of its own until it is closed.

    Parameters
    ----------
    rank : of this process, as the other ranks know it
    answer : from the names and counts asked about to a JSON-able answer
    """

    def __init__(self, rank: int, answer: Callable[[dict[str, int]], dict[str, Any]]) -> None:
        self._answer = answer
        self._socket = socket.create_server(("", 0))
        self.endpoint = Endpoint(
            rank,
            socket.gethostname(),
            _addresses(),
            self._socket.getsockname()[1],
            secrets.token_hex(16),
        )
        _OPEN.add(self)
        threading.Thread(target=self._serve, name="hvd_sparse listener", daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:  # closed
                return
            with connection, contextlib.suppress(OSError, ValueError, AttributeError, TypeError):
                connection.settimeout(PATIENCE_S)
                question = json.loads(_read_line(connection))
                if hmac.compare_digest(str(question.get("token")), self.endpoint.token):
                    connection.sendall(
                        json.dumps(self._answer(question["submitted"])).encode() + b"\n"
                    )

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread up
        self._socket.close()

    def leave_to_parent(self) -> None:
        """In a forked child: the port is the parent's, and must be free when that ends."""
        self._socket.close()


def _close_in_child() -> None:
    for listener in list(_OPEN):
        listener.leave_to_parent()


os.register_at_fork(after_in_child=_close_in_child)


def introduce(endpoint: Endpoint) -> Generator[AllGather, np.ndarray, list[Endpoint]]:
    """Tell all ranks where this one listens: a conversation as exchanges hold them.  The endpoints
    in rank order."""
    line = (
        json.dumps(
            [endpoint.rank, endpoint.host, endpoint.addresses, endpoint.port, endpoint.token]
        ).encode()
        + b"\n"
    )
    gathered = yield AllGather(np.frombuffer(line, np.uint8))
    told = [json.loads(line) for line in gathered.tobytes().splitlines()]
    return [
        Endpoint(rank, host, tuple(addresses), port, token)
        for rank, host, addresses, port, token in told
    ]


def ask_all(
    endpoints: Sequence[Endpoint], submitted: dict[str, int], patience_s: float = PATIENCE_S
) -> list[Answer]:
    """What every rank has of what this one has submitted; bounded by a small multiple of
    ``patience_s``."""
    answers: dict[int, Answer] = {}
    left = list(enumerate(endpoints))

    def work() -> None:
        while left:
            with contextlib.suppress(IndexError):
                place, endpoint = left.pop()
                answers[place] = ask(endpoint, submitted, patience_s)

    # no pool of the library's: those refuse work once the interpreter begins to end, where hangs
    # happen too
    threads = [
        threading.Thread(target=work, daemon=True) for _ in range(min(ASKED_AT_ONCE, len(left)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answers[place] for place in sorted(answers)]


def ask(endpoint: Endpoint, submitted: dict[str, int], patience_s: float = PATIENCE_S) -> Answer:
    """Ask one rank, at each of its addresses until one answers."""
    question = json.dumps({"token": endpoint.token, "submitted": submitted}).encode() + b"\n"
    nearby = ["127.0.0.1"] if endpoint.host == socket.gethostname() else []
    state, tried = "unreachable", []
    for address in [*nearby, *endpoint.addresses]:
        tried.append(f"{address}:{endpoint.port}")
        try:
            with socket.create_connection((address, endpoint.port), patience_s) as connection:
                connection.sendall(question)
                answer = json.loads(_read_line(connection))
        except TimeoutError:
            return Answer(endpoint.rank, "paused", tried=tuple(tried))
        except ConnectionRefusedError:
            state = "ended"
        except (OSError, ValueError):
            continue  # somebody else's port, or no way there
        else:
            return Answer(
                endpoint.rank,
                "answers",
                tuple(map(str, answer["behind"])),
                str(answer["place"]),
                int(answer["pending"]),
                bool(answer["is_joined"]),
                tuple(tried),
            )
    return Answer(endpoint.rank, state, tried=tuple(tried))


def _read_line(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        line = stream.readline(LONGEST_LINE)
    if not line.endswith(b"\n"):
        raise ValueError("no whole line arrived")
    return line


def _addresses() -> tuple[str, ...]:
    """This machine's IPv4 addresses, as others might reach them."""
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
