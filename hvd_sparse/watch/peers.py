"""The ledger of the tensors that this rank has submitted to Horovod, and the questions that a
waiting rank asks the others.

The ledger's clock does not count times in which this process was suspended or one of its threads
did not release Python's lock, because other ranks do not cause such delays.

On every rank, a thread answers questions at a UDP port. A rank that does not answer has ended, is
suspended, or does not release Python's lock. A question and its answer are one datagram each. A
question begins with the secret of the rank that receives it; other datagrams are ignored. Ranks
exchange addresses and secrets in an allgather before the first step.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import islice

from hvd_sparse.collectives.contract import Gatherer

TURN_S = 0.25
"""Seconds between two updates of the clock, which is therefore late by at most this time."""
MOST_S = 1.0
"""Largest number of seconds that one update adds to the clock; any further seconds were a pause."""
PATIENCE_S = 10.0
"""Largest number of seconds that a rank waits for answers."""
AGAIN_S = 0.5
"""Seconds after which a question is sent again, because datagrams may be lost."""
PAUSE_S = 0.1
"""Seconds that a rank's thread pauses after an attempt to answer a question failed."""
LONGEST_LIST = 8
"""Largest number of tensors in a question, and of ranks or tensors in an error."""
TOKEN_BYTES = 32
LONGEST_BYTES = 1 << 16

logger = logging.getLogger("hvd_sparse")


class RunningClock:
    """A clock whose time, ``now_s``, counts only the seconds in which this process ran and released
    Python's lock."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the clock's thread if it is not running. A forked child must start it again,
        because threads are not copied into the child."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="hvd_sparse clock", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        read_s = time.monotonic()
        while True:
            time.sleep(TURN_S)
            last_s, read_s = read_s, time.monotonic()
            self.now_s += min(read_s - last_s, MOST_S)


clock = RunningClock()


class Ledger:
    """Counts how often each tensor was submitted to Horovod, and records since when each pending
    tensor (submitted, but without a result) waits. Ranks compare the counts. Thread-safe.

    reached_s : the time when a collective of this package last ended. All ranks took part in it, so
        no pending tensor has waited for another rank for a longer time
    """

    def __init__(self) -> None:
        clock.start()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._waits = 0
        self._last_change = self.reached_s = clock.now_s
        self.begun = self._begun_before = 0

    def begin(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
            self.begun += 1
            self._since[name] = self._last_change = clock.now_s

    def end(self, name: str) -> None:
        with self._lock:
            self._since.pop(name, None)
            self._last_change = clock.now_s

    def clear(self) -> None:
        """Remove the pending tensors, because the step has failed; keep the counts."""
        with self._lock:
            self._since.clear()
            self._last_change = clock.now_s

    def restart(self) -> None:
        """Remove the pending tensors and reset the counts, because the run continues with other
        ranks."""
        self.clear()
        with self._lock:
            self._counts.clear()
            self._begun_before = self.begun

    def begin_wait(self) -> None:
        """Record that this package begins to wait for a collective. Unlike Horovod's waits, this
        wait raises an error at the time limit, so the watchdog then gives the program ``GRACE_S``
        seconds to handle the error."""
        with self._lock:
            self._waits += 1

    def end_wait(self, name: str | None = None) -> None:
        """Record that a wait has ended. ``name`` is the tensor whose result has arrived, if any."""
        with self._lock:
            self._waits -= 1
            if name is not None:
                self._since.pop(name, None)
                self._last_change = clock.now_s

    @property
    def submissions(self) -> int:
        """The number of submissions since the last ``restart``."""
        return self.begun - self._begun_before

    @property
    def is_waiting(self) -> bool:
        return self._waits > 0

    @property
    def idle_s(self) -> float:
        """The seconds since the last submission or the last result, whichever was later."""
        return clock.now_s - self._last_change

    def pending(self) -> dict[str, int]:
        """Return the names of the pending tensors, oldest first, with the number of submissions of
        each."""
        with self._lock:
            names = sorted(self._since, key=self._since.__getitem__)
            return {name: self._counts[name] for name in names}

    def oldest(self) -> tuple[str, int, float] | None:
        """Return the name of the tensor that is pending longest, its number of submissions, and the
        seconds that it has waited. Return None if no tensor is pending."""
        with self._lock:
            if not self._since:
                return None
            name = min(self._since, key=self._since.__getitem__)
            since_s = max(self._since[name], self.reached_s)
            return name, self._counts[name], clock.now_s - since_s

    def behind(self, counts: Mapping[str, int]) -> list[str]:
        """Return the tensors that this rank has submitted less often than ``counts`` states."""
        with self._lock:
            return [name for name, count in counts.items() if self._counts[name] < count]


@dataclass(frozen=True)
class Endpoint:
    """The address at which a rank answers questions.

    addresses : the IPv4 addresses of its host; other hosts may not reach all of them
    port : number of the UDP port
    token : the secret with which a question begins
    """

    rank: int
    addresses: tuple[str, ...]
    port: int
    token: str


@dataclass(frozen=True)
class Answer:
    """A rank's answer to a question about the ledger.

    submissions : number of the rank's submissions
    behind : names of the tensors that the rank has submitted less often than the asking rank
    place : text with the lines of code at which the rank's main thread is
    """

    rank: int
    submissions: int
    behind: Sequence[str]
    place: str


class Port:
    """A UDP port, and the thread that answers questions there until ``close``."""

    def __init__(self, answer: Callable[[Mapping[str, int]], Answer]) -> None:
        self._answer = answer
        self._is_closed = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]
        self.token = secrets.token_hex(TOKEN_BYTES // 2)
        threading.Thread(target=self._serve, name="hvd_sparse port", daemon=True).start()

    def close(self) -> None:
        self._is_closed = True
        # The datagram wakes the thread, which then closes the socket.
        with contextlib.suppress(OSError):
            self._socket.sendto(b"", ("127.0.0.1", self.number))

    def _serve(self) -> None:
        with self._socket:
            while not self._is_closed:
                try:
                    said, caller = self._socket.recvfrom(LONGEST_BYTES)
                    # An answer begins with the mark of its question.
                    mark, question = said[TOKEN_BYTES : 2 * TOKEN_BYTES], said[2 * TOKEN_BYTES :]
                    if hmac.compare_digest(said[:TOKEN_BYTES], self.token.encode()):
                        answer = json.dumps(astuple(self._answer(json.loads(question))))
                        self._socket.sendto(mark + answer.encode(), caller)
                except Exception:  # this thread must survive any datagram
                    logger.warning("another rank's question was not answered", exc_info=True)
                    time.sleep(PAUSE_S)


def addresses() -> tuple[str, ...]:
    try:
        import psutil  # type: ignore[import-untyped] # Horovod depends on it
    except ImportError:
        told = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        return tuple(sorted({"127.0.0.1", *(str(info[4][0]) for info in told)}))
    interfaces = psutil.net_if_addrs().values()
    return tuple(
        sorted(a.address for each in interfaces for a in each if a.family == socket.AF_INET)
    )


def introduce(endpoint: Endpoint, gatherer: Gatherer) -> list[Endpoint]:
    """Send this rank's endpoint to all ranks, and return the endpoints of all ranks. Collective."""
    told = gatherer.tell_all(astuple(endpoint))
    return [Endpoint(rank, tuple(where), port, token) for rank, where, port, token in told]


def ask_all(
    endpoints: Sequence[Endpoint], submitted: Mapping[str, int], patience_s: float = PATIENCE_S
) -> dict[int, Answer]:
    """Ask all ranks at once which of the first ``LONGEST_LIST`` tensors of ``submitted`` they have
    submitted less often than this rank. Return the answers by rank, without ranks that do not
    answer within ``patience_s`` seconds."""
    mark = secrets.token_hex(TOKEN_BYTES // 2).encode()
    question = mark + json.dumps(dict(islice(submitted.items(), LONGEST_LIST))).encode()
    answers: dict[int, Answer] = {}
    end_s = time.monotonic() + patience_s
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(min(AGAIN_S, patience_s))
        while len(answers) < len(endpoints) and time.monotonic() < end_s:
            for endpoint in endpoints:
                for address in () if endpoint.rank in answers else endpoint.addresses:
                    with contextlib.suppress(OSError):  # no route to it
                        asking.sendto(endpoint.token.encode() + question, (address, endpoint.port))
            with contextlib.suppress(TimeoutError):
                while len(answers) < len(endpoints) and time.monotonic() < end_s:
                    said = asking.recv(LONGEST_BYTES)
                    if said.startswith(mark):
                        answer = Answer(*json.loads(said[TOKEN_BYTES:]))
                        answers[answer.rank] = answer
    return answers


def names(keys: Sequence[str]) -> str:
    hidden = len(keys) - LONGEST_LIST
    return ", ".join(keys[:LONGEST_LIST]) + (f" and {hidden} more tensors" if hidden > 0 else "")
