"""The ledger of the tensors that this rank has submitted to Horovod, and the questions that a
waiting rank asks the others.

On every rank, a thread answers questions at a UDP port. A rank that does not answer has ended, is
suspended, or does not release Python's lock. A question and its answer are one datagram each. Both
begin with the secret of the rank that answers; other datagrams are ignored. Ranks exchange
addresses and secrets in an allgather before the first step.
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
from itertools import islice
from typing import NamedTuple

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


class Standstill:
    """The time since the last progress of this rank: a submission, a result, or the beginning of a
    wait of this package. Progress replaces the object, and so forgets its attributes.

    seconds : the duration, as counted by the watchdog's thread
    is_doubtful : whether the ranks were asked at the time limit, without a sure verdict
    verdict : the text for the error of a wait that has reached its time limit, or None
    """

    seconds = 0.0
    is_doubtful = False
    verdict: str | None = None


class Ledger:
    """Counts how often each tensor was submitted to Horovod, and records which tensors are pending
    (submitted, but without a result). Ranks compare the counts. Needs no lock, because each method
    makes only changes that are atomic in Python, and no two threads submit the same tensor.

    waits : the names of the collectives for which this package waits. Unlike Horovod's waits, these
        waits raise an error, which the program can handle
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._pending: dict[str, bool] = {}
        self.waits: list[str] = []
        self.standstill = Standstill()

    def begin(self, name: str) -> None:
        self._counts[name] += 1
        self._pending[name] = True
        self.standstill = Standstill()

    def end(self, name: str) -> None:
        if self._pending.pop(name, False):
            self.standstill = Standstill()

    def clear(self) -> None:
        """Remove the pending tensors, because the step has failed; keep the counts."""
        self._pending.clear()

    def restart(self) -> None:
        """Reset the counts, because the run continues with other ranks."""
        self._counts.clear()

    @property
    def submissions(self) -> int:
        """The number of submissions since the last ``restart``."""
        return sum(self._counts.values())

    def pending(self) -> dict[str, int]:
        """Return the names of the pending tensors, oldest first, with the number of submissions of
        each."""
        return {name: self._counts[name] for name in list(self._pending)}

    def behind(self, counts: Mapping[str, int]) -> list[str]:
        """Return the tensors that this rank has submitted less often than ``counts`` states."""
        return [name for name, count in counts.items() if self._counts[name] < count]


class Endpoint(NamedTuple):
    """The address at which a rank answers questions.

    addresses : the IPv4 addresses of its host; other hosts may not reach all of them
    port : number of the UDP port
    token : the secret with which questions and answers begin
    """

    rank: int
    addresses: list[str]
    port: int
    token: str


class Answer(NamedTuple):
    """A rank's answer to a question about the ledger.

    submissions : number of the rank's submissions
    behind : names of the tensors that the rank has submitted less often than the asking rank
    place : text with the lines of code at which the rank's main thread is
    """

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
                    token, question = said[:TOKEN_BYTES], said[TOKEN_BYTES:]
                    if hmac.compare_digest(token, self.token.encode()):
                        answer = json.dumps(self._answer(json.loads(question)))
                        self._socket.sendto(token + answer.encode(), caller)
                except Exception:  # this thread must survive any datagram
                    logger.warning("another rank's question was not answered", exc_info=True)
                    time.sleep(PAUSE_S)


def addresses() -> list[str]:
    try:
        import psutil  # type: ignore[import-untyped] # Horovod depends on it
    except ImportError:
        told = socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        return sorted({"127.0.0.1", *(str(info[4][0]) for info in told)})
    interfaces = psutil.net_if_addrs().values()
    return sorted(a.address for each in interfaces for a in each if a.family == socket.AF_INET)


def ask_all(
    endpoints: Sequence[Endpoint], submitted: Mapping[str, int], patience_s: float = PATIENCE_S
) -> dict[int, Answer]:
    """Ask all ranks at once which of the first ``LONGEST_LIST`` tensors of ``submitted`` they have
    submitted less often than this rank. Return the answers by rank, without ranks that do not
    answer within ``patience_s`` seconds."""
    question = json.dumps(dict(islice(submitted.items(), LONGEST_LIST))).encode()
    silent = {endpoint.token.encode(): endpoint for endpoint in endpoints}
    answers: dict[int, Answer] = {}
    end_s = time.monotonic() + patience_s
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.settimeout(min(AGAIN_S, patience_s))
        while silent and time.monotonic() < end_s:
            for token, endpoint in silent.items():
                for address in endpoint.addresses:
                    with contextlib.suppress(OSError):  # no route to it
                        asking.sendto(token + question, (address, endpoint.port))
            with contextlib.suppress(TimeoutError):
                while silent and time.monotonic() < end_s:
                    said = asking.recv(LONGEST_BYTES)
                    found = silent.pop(said[:TOKEN_BYTES], None)
                    if found is not None:
                        answers[found.rank] = Answer(*json.loads(said[TOKEN_BYTES:]))
    return answers


def names(keys: Sequence[str]) -> str:
    hidden = len(keys) - LONGEST_LIST
    return ", ".join(keys[:LONGEST_LIST]) + (f" and {hidden} more tensors" if hidden > 0 else "")
