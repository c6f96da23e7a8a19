"""The watchdog: a thread that ends its process after too long a wait, and names the awaited ranks.

Horovod's own wait has no time limit. If tensors of this rank are pending and there is no progress
for ``timeout_s``, the thread asks the other ranks for their submissions, reports which ranks have
not submitted which tensors, and ends the process; the launcher then ends the others. If this
package itself is waiting, its wait raises ``ExchangeTimeout`` instead, and the program has
``GRACE_S`` seconds to handle it.

When the interpreter exits, Horovod shuts down and waits for the other ranks. Under MPI this wait
may never end if an error left a rank in an exchange, so ``limit_shutdown`` limits it.
"""

from __future__ import annotations

import atexit
import gc
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

from hvd_sparse.collectives.contract import Collective, Gatherer, Pending
from hvd_sparse.errors import ExchangeTimeout, SparseError
from hvd_sparse.watch.peers import (
    LONGEST_LIST,
    Answer,
    Endpoint,
    Ledger,
    Port,
    Standstill,
    addresses,
    ask_all,
    logger,
    names,
)

TURN_S = 0.25
"""Seconds between two looks at the ledger, and between two looks of a wait at the verdict."""
MOST_S = 1.0
"""Largest number of seconds that count between two looks. In any further seconds, this process was
suspended, or a thread held Python's lock, and other ranks do not cause such delays."""
GRACE_S = 30.0
"""Seconds that a program has to handle ``ExchangeTimeout`` before the process is ended."""
TIMES_IN_DOUBT = 2
"""Factor by which the time limit is longer if a rank does not answer, or if all ranks have
submitted the tensors."""
ADVICE = "see the output of that rank, or raise timeout_s"
SILENCE = (
    "does not answer: it has ended, its process or host is paused, or one of its threads holds "
    "Python's lock"
)
NOBODY = (
    "all ranks answer and have submitted them: the network or its driver is stuck, or an elastic "
    "run waits for a new worker, which nobody knows yet"
)
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
LAST_ANSWERS_S = 3.0
"""Seconds for which a process still answers before it ends or its wait raises an error, because the
waits of other ranks reach their time limits at about the same time."""
REMEDY = f"This process ends in {LAST_ANSWERS_S:g} s unless its wait ends before; {ADVICE}"

LIBRARIES = (
    *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).resolve().parents[1]),
    "<",
)
"""Prefixes of the file names of libraries; all other files are the user's code."""
register_once = lru_cache(maxsize=1)(atexit.register)


class Watchdog:
    """Watches the ledger of one compressor, and answers the other ranks' questions about the
    ledger. The process ends if tensors are pending without progress for ``timeout_s`` seconds; None
    sets no limit."""

    def __init__(self, name: str, rank: int, timeout_s: float | None) -> None:
        self.name = name
        self.rank = rank
        self.ledger = Ledger()
        self._peers: list[Endpoint] = []
        self.is_over = False
        self._port = Port(self._answer)
        # After hvd.init: functions registered last run first, before Horovod's shutdown.
        register_once(limit_shutdown)
        if timeout_s is not None:
            threading.Thread(
                target=self._run, args=(timeout_s,), name="hvd_sparse watchdog", daemon=True
            ).start()

    def meet(self, rank: int, gatherer: Gatherer) -> None:
        """Exchange addresses with all ranks, and compare counts with these ranks from now on.
        ``rank`` is the current rank of this process. Collective."""
        self.rank = rank
        mine = Endpoint(rank, addresses(), self._port.number, self._port.token)
        told = [Endpoint(*each) for each in gatherer.tell_all(mine)]
        self._peers = [endpoint for endpoint in told if endpoint.token != mine.token]
        self.ledger.restart()

    def close(self) -> None:
        self.is_over = True
        self._port.close()

    def lagging(self) -> list[int]:
        """Ask all ranks, and return the ranks that have submitted fewer tensors than this rank."""
        submissions = self.ledger.submissions
        answers = ask_all(self._peers, {}).items()
        return sorted(rank for rank, answer in answers if answer.submissions < submissions)

    def examine(self) -> tuple[str, bool]:
        """Ask all ranks about the pending tensors. Return a text for an error, with the ranks that
        have not submitted them; and whether this reason is sure, because all ranks have answered,
        and one is late."""
        pending, seconds = self.ledger.pending(), self.ledger.standstill.seconds
        answers = ask_all(self._peers, pending)
        words = [f"rank {self.rank} waits for {names(list(pending))} since {seconds:.0f} s"]
        for rank, *_ in self._peers:
            answer = answers.get(rank)
            if answer is None:
                words.append(f"rank {rank} {SILENCE}")
            elif answer.behind:
                is_all = len(answer.behind) >= min(len(pending), LONGEST_LIST)
                what = "them" if is_all else names(answer.behind)
                words.append(f"rank {rank} has not submitted {what}: {answer.place}")
        is_sure = len(answers) == len(self._peers) and (len(words) > 1 or not answers)
        if len(words) == 1:
            words.append(NOBODY if self._peers else UNKNOWN)
        if len(words) > LONGEST_LIST + 1:
            words[LONGEST_LIST + 1 :] = [f"and {len(words) - LONGEST_LIST - 1} more ranks"]
        return "; ".join(words), is_sure

    # -- the threads ------------------------------------------------------------------------------

    def _answer(self, submitted: Mapping[str, int]) -> Answer:
        place = f"it is at {place_of(lines_of_main_thread())}"
        return Answer(self.ledger.submissions, self.ledger.behind(submitted), place)

    def _run(self, limit_s: float) -> None:
        read_s = time.monotonic()
        while True:
            # With this interval, a wait ends at most a tenth of the limit too late.
            time.sleep(min(TURN_S, limit_s / 10))
            if self.is_over:
                return
            last_s, read_s = read_s, time.monotonic()
            standstill = self.ledger.standstill
            standstill.seconds += min(read_s - last_s, MOST_S)
            if standstill.verdict is not None:
                if standstill.seconds > GRACE_S:
                    self._end(standstill.verdict, standstill)
            elif self.ledger.pending() or self.ledger.waits:
                self._judge(limit_s, standstill)

    def _judge(self, limit_s: float, standstill: Standstill) -> None:
        """End the process, or a wait of this package, if a standstill is longer than the limit.
        In doubt, the limit is longer, because a rank that does not answer may answer as soon as it
        releases Python's lock."""
        is_last = standstill.seconds > TIMES_IN_DOUBT * limit_s
        if standstill.seconds <= limit_s or (standstill.is_doubtful and not is_last):
            return
        why, is_sure = self.examine()
        if self.ledger.standstill is not standstill or not (is_sure or is_last):
            standstill.is_doubtful = True
        elif self.ledger.waits:
            standstill.verdict, standstill.seconds = why, 0.0
            logger.error("%s", why)
        elif self.ledger.pending() and not self.is_over:
            self._end(why, standstill)

    def _end(self, why: str, standstill: Standstill) -> None:
        # Python's files and handlers have locks, which another thread may hold forever.
        os.write(2, f"hvd_sparse {self.name!r}: ExchangeTimeout: {why}. {REMEDY}\n".encode())
        time.sleep(LAST_ANSWERS_S)
        has_failed = standstill.verdict is None and not self.ledger.pending()
        # The program has time to handle the step's own error, but not to wait for ever after it.
        standstill.verdict, standstill.seconds = why, 0.0
        if self.ledger.standstill is standstill and not has_failed:
            os._exit(EXIT_CODE)


def limit_shutdown() -> None:
    """Limit Horovod's shutdown to ``END_S`` seconds if this program ends after an error of this
    package or a failed ``hvd.join()``. After a failed ``hvd.join()``, also print the reason,
    because Horovod's error lacks it. Called at the process's exit."""
    if was_ended_by_join():
        print(f"hvd_sparse: {JOIN_REASON}", file=sys.stderr, flush=True)
    elif not isinstance(getattr(sys, "last_value", None), SparseError):
        return
    # An alarm is the only timer that needs neither a thread nor Python's lock.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(END_S)


def was_ended_by_join() -> bool:
    """Return whether the error that ends this program was raised in ``hvd.join()``."""
    frames = [frame for frame, _ in traceback.walk_tb(getattr(sys, "last_traceback", None))]
    own = [each for each in frames if str(each.f_globals.get("__name__")).startswith("horovod.")]
    return any(frame.f_code.co_name == "join" for frame in own)


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


class PatientPending:
    """A collective that has been started. While it is waited for, the watchdog judges whether the
    wait has reached its time limit."""

    def __init__(self, pending: Pending, name: str, watchdog: Watchdog) -> None:
        self._pending, self._name, self._watchdog = pending, name, watchdog
        self.is_done = pending.is_done  # without a method around it, because it is polled

    def wait(self, timeout_s: float | None) -> np.ndarray:
        ledger = self._watchdog.ledger
        if timeout_s is None or self._watchdog.is_over:
            return self._pending.wait(timeout_s)
        ledger.standstill = Standstill()
        ledger.waits.append(self._name)
        try:
            while (verdict := ledger.standstill.verdict) is None:
                try:
                    result = self._pending.wait(TURN_S)
                    # All ranks took part, so no pending tensor has waited longer for another rank.
                    ledger.standstill = Standstill()
                    return result
                except ExchangeTimeout as error:
                    if error.__cause__ is not None or self._watchdog.is_over:  # it was aborted
                        raise ExchangeTimeout(f"{error}; {self._watchdog.examine()[0]}") from error
            time.sleep(LAST_ANSWERS_S)
            ledger.clear()
            raise ExchangeTimeout(f"{self._name!r} did not finish: {verdict}; {ADVICE}")
        finally:
            ledger.waits.remove(self._name)


@dataclass(eq=False)
class PatientCollective:
    """Wraps the collectives of a backend, so that the watchdog judges their waits."""

    _collective: Collective
    _watchdog: Watchdog

    rank = property(lambda self: self._collective.rank)
    world_size = property(lambda self: self._collective.world_size)
    nodes = property(lambda self: self._collective.nodes)

    def allgather(self, array: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.allgather(array, name), name, self._watchdog)

    def allreduce(self, array: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.allreduce(array, name), name, self._watchdog)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.alltoall(array, splits, name), name, self._watchdog)
