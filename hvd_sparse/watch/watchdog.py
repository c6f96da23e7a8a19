"""The watchdog: a thread that ends its process after too long a wait, and names the awaited ranks.

Horovod's own wait has no time limit. If the oldest pending tensor of this rank waits for its result
longer than ``timeout_s``, the thread asks the other ranks for their submissions, reports which
ranks have not submitted which tensors, and ends the process; the launcher then ends the others. If
this package itself is waiting, its wait first raises ``ExchangeTimeout``, and the program has
``GRACE_S`` seconds to handle it. Only the seconds in which this process ran are counted.

When the interpreter exits, Horovod shuts down and waits for the other ranks. Under MPI this wait
may never end if an error left a rank in an exchange, so ``prepare_end`` limits it.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending
from hvd_sparse.errors import ExchangeTimeout, SparseError
from hvd_sparse.watch.peers import (
    LONGEST_LIST,
    PATIENCE_S,
    TURN_S,
    Answer,
    Endpoint,
    Ledger,
    Port,
    addresses,
    ask_all,
    clock,
    names,
)

GRACE_S = 30.0
"""Seconds that a program has to handle ``ExchangeTimeout`` before the process is ended."""
TIMES_IN_DOUBT = 2
"""Factor by which the time limit is longer if a rank does not answer, or if all ranks have
submitted the tensor."""
IDLE_S = 1.0
"""Seconds without a submission before the thread looks for ``hvd.join()`` in the main thread."""
REMEDY = (
    "This process ends now, because nothing else would end its wait; see the output of that "
    "rank, or raise timeout_s"
)
SILENCE = (
    "does not answer: it has ended, its process or host is paused, or one of its threads holds "
    "Python's lock"
)

NOBODY = "all ranks answer and have submitted them: the network or its driver is stuck"
UNKNOWN = "the other ranks are unknown, because they have not come to the first exchange"
JOIN_REASON = (
    "hvd.join() cannot be used with hvd_sparse: if one rank leaves out an allgather that Horovod "
    "has cached, Horovod hangs or ends every rank. Give all ranks equally many batches, for "
    "instance by DistributedSampler(drop_last=True), or dataset.repeat() with steps_per_epoch"
)
EXIT_CODE = 124
"""Exit status of a process that the watchdog ends, the same as that of timeout(1)."""
END_S = 10
"""Seconds that Horovod's shutdown may take after an error of this package."""
LAST_ANSWERS_S = 1.0
"""Seconds for which a process still answers before it ends, because the waits of other ranks reach
their time limits at about the same time, and these ranks then ask this process."""

logger = logging.getLogger("hvd_sparse")

LIBRARIES = (
    *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).resolve().parents[1]),
    "<",
)
"""Prefixes of the file names of libraries; all other files are the user's code."""


class Watchdog:
    """Watches the ledger of one compressor, and answers the other ranks' questions about the
    ledger. The process ends if a tensor waits for its result longer than ``timeout_s`` seconds;
    None sets no limit."""

    def __init__(self, name: str, rank: int, timeout_s: float | None) -> None:
        self.name = name
        self.rank = rank
        self.ledger = Ledger()
        self._timeout_s = timeout_s
        self._peers: list[Endpoint] = []
        self._is_over = False
        self._spared: tuple[str, int] | None = None
        self._given_up: tuple[str, int] | None = None
        self._port = Port(self._answer)
        prepare_end()
        if timeout_s is not None:
            threading.Thread(
                target=self._run, args=(timeout_s,), name="hvd_sparse watchdog", daemon=True
            ).start()

    def endpoint(self, rank: int) -> Endpoint:
        """Return the address at which this process answers. ``rank`` is its current rank."""
        self.rank = rank
        return Endpoint(rank, addresses(), self._port.number, self._port.token)

    def meet(self, endpoints: Sequence[Endpoint]) -> None:
        """Restart the ledger for a new set of ranks, and store the endpoints at which the others
        answer. ``endpoints`` has those of all ranks."""
        self.ledger.restart()
        self._peers = [endpoint for endpoint in endpoints if endpoint.token != self._port.token]

    def close(self) -> None:
        # Takes no lock, because the garbage collector may call it in a thread that holds the lock.
        self._is_over = True
        self._port.close()

    def has_silent_rank(self) -> bool:
        return len(self._ask(self.ledger.pending())) < len(self._peers)

    def give_up(self) -> str:
        """Return a text for an error: the pending tensors, and the ranks that have not submitted
        them. The process ends if the program then submits no tensor for ``GRACE_S`` seconds,
        because its error handling or its exit is then probably waiting for Horovod."""
        pending = self.ledger.pending()
        why = self._describe(pending, self._ask(pending))
        self.ledger.clear()
        self._given_up = why, self.ledger.begun
        return why

    def lagging(self) -> list[int]:
        """Ask all ranks, and return the ranks that have submitted fewer tensors than this rank."""
        submissions = self.ledger.submissions
        answers = self._ask({}).values()
        return sorted(answer.rank for answer in answers if answer.submissions < submissions)

    # -- the threads ------------------------------------------------------------------------------

    def _answer(self, submitted: Mapping[str, int]) -> Answer:
        lines = lines_of_main_thread()
        is_joined = is_in_join(lines) or was_ended_by_join()
        place = JOIN_REASON if is_joined else f"it is at {place_of(lines)}"
        return Answer(self.rank, self.ledger.submissions, self.ledger.behind(submitted), place)

    def _run(self, limit_s: float) -> None:
        while True:
            # With this interval, a wait ends at most a tenth of the limit too late.
            time.sleep(min(1.0, limit_s / 10))
            if self._is_over:
                return
            oldest = self.ledger.oldest()
            if self._given_up is not None and self._given_up[1] == self.ledger.begun:
                if self.ledger.idle_s > GRACE_S:
                    self._end(self._given_up[0])
            elif oldest is not None:
                self._judge(limit_s, *oldest)
            elif self.ledger.submissions and self.ledger.idle_s > IDLE_S:
                self._look_for_join()

    def _judge(self, limit_s: float, name: str, count: int, age_s: float) -> None:
        """End the process if a tensor has waited longer than the limit. The limit is multiplied by
        ``TIMES_IN_DOUBT`` if all ranks have submitted the tensor. It is also multiplied if a rank
        does not answer, because this rank may answer as soon as it releases Python's lock."""
        is_last = age_s > TIMES_IN_DOUBT * limit_s
        if age_s <= limit_s or (self._spared == (name, count) and not is_last):
            return
        pending, reached_s = self.ledger.pending(), self.ledger.reached_s
        answers = self._ask(pending)
        is_late = any(answer.behind for answer in answers.values())
        self._spared = name, count
        if not is_last and (len(answers) < len(self._peers) or (answers and not is_late)):
            return
        why = self._describe(pending, answers)
        if self.ledger.is_waiting:
            # A wait of this package has the same limit, and the program can handle its error.
            logger.error("%s; the process ends in %.0f s", why, GRACE_S)
            time.sleep(GRACE_S)
        # A result may have arrived meanwhile.
        if self.ledger.pending().get(name) == count and self.ledger.reached_s == reached_s:
            self._end(why)

    def _look_for_join(self) -> None:
        """End this process if it is in ``hvd.join()`` and another rank has submitted more tensors
        than this rank. The other rank would wait forever, because ``hvd.join()`` does not work with
        this package."""
        # Only while nothing is exchanged, because reading the stack takes time from other threads.
        submissions = self.ledger.submissions
        if is_in_join(lines_of_main_thread()) and any(
            answer.submissions > submissions for answer in self._ask({}).values()
        ):
            self._end(JOIN_REASON)

    def _ask(self, submitted: dict[str, int]) -> dict[int, Answer]:
        patience_s = min(PATIENCE_S, max(2.0, self._timeout_s or PATIENCE_S))
        return ask_all(self._peers, submitted, patience_s)

    def _describe(self, pending: dict[str, int], answers: Mapping[int, Answer]) -> str:
        oldest = self.ledger.oldest()
        since_s = 0.0 if oldest is None else oldest[2]
        words = [f"rank {self.rank} waits for {names(list(pending))} since {since_s:.0f} s"]
        for rank in sorted(endpoint.rank for endpoint in self._peers):
            answer = answers.get(rank)
            if answer is None:
                words.append(f"rank {rank} {SILENCE}")
            elif answer.behind:
                is_all = len(answer.behind) >= min(len(pending), LONGEST_LIST)
                what = "them" if is_all else names(answer.behind)
                words.append(f"rank {rank} has not submitted {what}: {answer.place}")
        if len(words) == 1:
            words.append(NOBODY if self._peers else UNKNOWN)
        if len(words) > LONGEST_LIST + 1:
            words[LONGEST_LIST + 1 :] = [f"and {len(words) - LONGEST_LIST - 1} more ranks"]
        return "; ".join(words)

    def _end(self, why: str) -> None:
        if not self._is_over:
            say_and_exit(f"hvd_sparse {self.name!r}: ExchangeTimeout: {why}. {REMEDY}")


def say_and_exit(words: str) -> None:
    """Write a text to standard error, and end the process even if other threads hold locks."""
    # Do not use Python's files and handlers, because another thread may hold their locks forever.
    os.write(2, (words + "\n").encode())
    time.sleep(LAST_ANSWERS_S)
    os._exit(EXIT_CODE)


# Called after hvd.init: functions registered last run first, before Horovod's shutdown.
@lru_cache(maxsize=1)
def prepare_end() -> None:
    """Register a function that runs at the process's exit. After an error of this package or a
    failed ``hvd.join()``, the function limits Horovod's shutdown to ``END_S`` seconds. After a
    failed ``hvd.join()``, it also prints the reason, because Horovod's error lacks the reason."""
    atexit.register(_at_exit)


def _at_exit() -> None:
    if was_ended_by_join():
        sys.stderr.write(f"hvd_sparse: {JOIN_REASON}\n")
        sys.stderr.flush()
    elif not isinstance(getattr(sys, "last_value", None), SparseError):
        return
    if threading.current_thread() is threading.main_thread():
        # An alarm is the only timer that needs neither a thread nor Python's lock.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(END_S)


def was_ended_by_join() -> bool:
    """Return whether the error that ends this program was raised in ``hvd.join()``."""
    trace = traceback.walk_tb(getattr(sys, "last_traceback", None))
    codes = [(frame.f_code, number) for frame, number in trace]
    return is_in_join([Line(code.co_filename, number, code.co_name) for code, number in codes])


class Line(NamedTuple):
    file: str
    number: int
    function: str


def lines_of_main_thread() -> list[Line]:
    """Return the lines of the main thread's stack, innermost first. Outer lines may be missing if
    the thread leaves a generator during the call.

    The call turns garbage collection off while it reads the stack. Otherwise CPython 3.11 may
    collect while it creates a frame's ``f_back``. A finalizer may then release Python's lock, the
    main thread continues, and the frame no longer exists. faulthandler cannot be used, because it
    reads the list of all threads without a lock, and crashes the process if a C++ library's thread
    enters or leaves Python at that time.
    """
    is_collecting = gc.isenabled()
    gc.disable()
    try:
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        lines = []
        while frame is not None:
            code = frame.f_code
            lines.append(Line(code.co_filename, frame.f_lineno or 0, code.co_name))
            frame = frame.f_back
        return lines
    finally:
        if is_collecting:
            gc.enable()


def place_of(lines: Sequence[Line]) -> str:
    """Return a text with the innermost line of a stack, and with the innermost line of user code in
    it."""
    if not lines:
        return "no frame of its main thread"
    own = next((line for line in lines if not line.file.startswith(LIBRARIES)), lines[0])
    places = [lines[0]] if own is lines[0] else [lines[0], own]
    return ", called by ".join(f"{file}:{number} ({name})" for file, number, name in places)


def is_in_join(lines: Sequence[Line]) -> bool:
    folders = tuple(
        f"{each}{os.sep}" for each in getattr(sys.modules.get("horovod"), "__path__", ())
    )
    return any(line.function == "join" and line.file.startswith(folders) for line in lines)


class PatientPending:
    """A collective that has been started. Its time limit counts only the seconds in which this
    process ran. If a rank does not answer at the limit, the limit is multiplied by
    ``TIMES_IN_DOUBT`` once. After a result, the watchdog measures the waits of pending tensors
    anew, because ``save`` waits for many collectives, which may take long together."""

    def __init__(self, pending: Pending, watchdog: Watchdog) -> None:
        self._pending, self._watchdog = pending, watchdog
        self.is_done = pending.is_done  # without a method around it, because it is polled

    def wait(self, timeout_s: float | None) -> np.ndarray:
        result = self._wait(timeout_s)
        self._watchdog.ledger.reached_s = clock.now_s
        return result

    def _wait(self, timeout_s: float | None) -> np.ndarray:
        if timeout_s is None:
            return self._pending.wait(None)
        end_s, is_extended = clock.now_s + timeout_s, False
        while True:
            try:
                return self._pending.wait(end_s - clock.now_s)
            except ExchangeTimeout:
                if end_s - clock.now_s > TURN_S:
                    continue
                if is_extended or not self._watchdog.has_silent_rank():
                    raise
                is_extended, end_s = True, end_s + (TIMES_IN_DOUBT - 1) * timeout_s


@dataclass(eq=False)
class PatientCollective:
    """Wraps the collectives of a backend, so that their time limits follow the rules of
    ``PatientPending``."""

    _collective: Collective
    _watchdog: Watchdog

    rank = property(lambda self: self._collective.rank)
    world_size = property(lambda self: self._collective.world_size)
    nodes = property(lambda self: self._collective.nodes)

    def allgather(self, array: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.allgather(array, name), self._watchdog)

    def allreduce(self, array: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.allreduce(array, name), self._watchdog)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.alltoall(array, splits, name), self._watchdog)
