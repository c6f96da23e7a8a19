"""The watchdog: a thread that ends a process which waits too long, and names the rank it waits for.

Horovod's own wait has no limit, and releases Python's lock.  So a thread looks at the tensors that
this rank has submitted and not got back.  When the oldest is older than ``timeout_s`` the thread
asks the other ranks, says which of them have not submitted which tensors, and ends the process; the
launcher then ends the others.  A wait of this package raises ``ExchangeTimeout`` first.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence

from hvd_sparse.watch.awake_clock import awake_s, stood_s
from hvd_sparse.watch.calls import addresses
from hvd_sparse.watch.diagnosis import (
    describe_answers,
    is_behind,
    is_gone,
    is_in_doubt,
    names,
    remedy,
)
from hvd_sparse.watch.ledger import Ledger
from hvd_sparse.watch.listener import PATIENCE_S, Line, Listener
from hvd_sparse.watch.peers import Answer, Endpoint, Question, ask_all
from hvd_sparse.watch.process_state import look_at, process_from_json, this_process
from hvd_sparse.watch.stack import (
    JOIN_REASON,
    is_in_join,
    lines_of_main_thread,
    place_of,
    prepare_end,
    was_ended_by_join,
)

EXIT_CODE = 124
"""Exit status of an ended process: that of timeout(1)."""
GRACE_S = 30.0
"""Seconds that a program has to handle ``ExchangeTimeout`` before the process is ended."""
LAST_ANSWERS_S = 1.0
"""Seconds for which a process that is about to end still answers.  Other ranks' limits end at about
the same time, and should not find this rank gone."""
IDLE_S = 1.0
"""Seconds without a tensor after which the main thread may be in ``hvd.join()``."""
TIMES_IN_DOUBT = 2
"""Factor of the time limit where a rank may be busy and none is known to be gone."""

logger = logging.getLogger("hvd_sparse")


class Watchdog:
    """Watch one compressor's ledger, and answer the other ranks' questions about it.

    Parameters
    ----------
    name : name of the compressor
    rank : rank of this process in the compressor's process set
    timeout_s : seconds that a submitted tensor may take; with None the watchdog only answers
    """

    def __init__(self, name: str, rank: int, timeout_s: float | None) -> None:
        self.name = name
        self.rank = rank
        self.ledger = Ledger()
        self._timeout_s = timeout_s
        self._peers: list[Endpoint] = []
        self._is_over = threading.Event()
        self._probed_at = 0.0
        self._given_up = ""
        self._silent: set[int] = set()
        self._was_in_doubt = False
        self._listener = Listener(self._answer)
        prepare_end()
        if timeout_s is not None:
            threading.Thread(target=self._run, name="hvd_sparse watchdog", daemon=True).start()

    def endpoint(self, rank: int) -> Endpoint:
        """Return the address at which this process listens, under the rank that it has now."""
        self.rank = rank
        here = self._listener
        return Endpoint(
            rank, socket.gethostname(), addresses(), here.port, here.token, this_process()
        )

    def meet(self, endpoints: Sequence[Endpoint]) -> None:
        """Take the endpoints of all ranks, which are at the same point of their programs.

        Parameters
        ----------
        endpoints : those of all ranks, this one's among them
        """
        self.ledger.restart()
        self._peers = [endpoint for endpoint in endpoints if endpoint.token != self._listener.token]

    def close(self) -> None:
        """Stop watching and answering."""
        self._is_over.set()
        self._listener.close()
        self.ledger.restart()

    def is_in_doubt(self) -> bool:
        """Tell whether a wait may take longer: a rank is busy or stood still, and nothing worse is
        known."""
        answers = self._ask(self.ledger.pending())
        return self._excuses(answers) and not is_gone(answers)

    def _excuses(self, answers: Sequence[Answer]) -> bool:
        return is_in_doubt(answers, self.ledger.oldest_s(), self._timeout_s or 0.0)

    def give_up(self) -> str:
        """Return the pending tensors and the ranks that have not submitted them, in words.

        The caller raises an error with these words.  If the program then goes on waiting for
        Horovod, while it handles the error or at its exit, the watchdog ends it after ``GRACE_S``.
        """
        pending = self.ledger.pending()
        self._given_up = self._describe(pending, self._ask(pending))
        self.ledger.clear()
        return self._given_up

    def lagging(self) -> list[int]:
        """Return the ranks that have not submitted all that this one waits for; asks them."""
        answers = self._ask(self.ledger.pending())
        return sorted(answer.rank for answer in answers if answer.behind)

    # -- the threads ------------------------------------------------------------------------------

    def _answer(self, question: Line) -> Line:
        seen, lines = look_at(process_from_json(question["process"])), lines_of_main_thread()
        return {
            "behind": self.ledger.behind(question["submitted"]),
            "pending": len(self.ledger.pending()),
            "place": place_of(lines),
            "is_joined": is_in_join(lines) or was_ended_by_join(),
            "stood_s": stood_s(float(question["waited_s"])),
            "sight": None if seen is None else [seen.state, seen.ran],
        }

    def _run(self) -> None:
        assert self._timeout_s is not None
        # So a limit is noticed at most a tenth late.
        while not self._is_over.wait(min(1.0, self._timeout_s / 10)):
            overdue = self.ledger.pending(self._timeout_s)
            # A doubt lasts as long as something is overdue: an answer may come late, too.
            self._was_in_doubt &= bool(overdue)
            if self.ledger.idle_s <= self._timeout_s:
                self._silent.clear()
            if self._given_up and self.ledger.idle_s > GRACE_S:
                self._end(self._given_up)
            elif overdue:
                self._judge(overdue)
            elif self._is_in_join():
                self._judge_join()
            elif (
                self.ledger.has_begun
                and min(self.ledger.idle_s, self._since_probe()) > self._timeout_s
            ):
                self._probe()

    def _judge(self, overdue: dict[str, int]) -> None:
        """End the process if a rank is gone or behind, or if the doubled limit is over.

        A rank that was busy may still submit its tensors, as may the ranks that wait for it.
        """
        answers = self._ask(overdue)
        assert self._timeout_s is not None
        if not overdue.items() & self.ledger.pending(self._timeout_s).items():
            return  # asking takes seconds, in which the tensors have come
        self._was_in_doubt |= self._excuses(answers)
        is_certain = is_gone(answers) or (is_behind(answers) and not self._was_in_doubt)
        if is_certain or self.ledger.oldest_s() > TIMES_IN_DOUBT * self._timeout_s:
            self._end(self._describe(overdue, answers))

    def _is_in_join(self) -> bool:
        # Looked at only where nothing is exchanged, as Python stands still while a stack is read.
        is_idle = self.ledger.has_begun and self.ledger.idle_s > IDLE_S
        return is_idle and is_in_join(lines_of_main_thread())

    def _judge_join(self) -> None:
        """End a process in ``hvd.join()`` once another rank waits for a tensor of it."""
        if any(answer.pending for answer in self._ask({})):
            self._end(JOIN_REASON)

    def _probe(self) -> None:
        """End the process if nothing was exchanged for long and another rank is paused.

        A paused rank may keep Horovod from finishing collectives that this package does not see.
        """
        assert self._timeout_s is not None
        answers = self._ask({})
        silent = {answer.rank for answer in answers if answer.state == "silent"}
        paused = [
            each for each in answers if each.state == "paused" or each.rank in silent & self._silent
        ]
        # A silent rank that nobody can see may be busy: only one that is silent twice is paused.
        self._probed_at, self._silent = awake_s(), silent
        if paused and self.ledger.idle_s > self._timeout_s:
            self._end(
                f"for {self.ledger.idle_s:.0f} s nothing was exchanged, and "
                + describe_answers(paused, {})
            )

    def _since_probe(self) -> float:
        return awake_s() - self._probed_at

    def _ask(self, submitted: dict[str, int]) -> list[Answer]:
        patience_s = min(PATIENCE_S, max(2.0, self._timeout_s or PATIENCE_S))
        return ask_all(
            self._peers, Question(submitted, self.ledger.oldest_s() + patience_s), patience_s
        )

    def _describe(self, pending: dict[str, int], answers: Sequence[Answer]) -> str:
        waits = (
            f"rank {self.rank} waits for {names(list(pending))} since "
            f"{self.ledger.oldest_s():.0f} s"
        )
        if not answers:
            return (
                f"{waits}; the other ranks are unknown, as they have not come to the first exchange"
            )
        return f"{waits}; " + describe_answers(answers, pending)

    def _end(self, why: str) -> None:
        if self._is_over.is_set():
            return
        # A wait of this package raises ExchangeTimeout at about this time: let the program handle
        # it, and end the process only if that takes too long.
        if self.ledger.is_waiting:
            logger.error("%s; the process ends in %.0f s", why, GRACE_S)
            if self._is_over.wait(GRACE_S):
                return
        say_and_exit(f"hvd_sparse {self.name!r}: ExchangeTimeout: {why}. {remedy(why)}")


def say_and_exit(words: str) -> None:
    """Write the words to standard error and end the process, whatever its other threads do."""
    # Past Python's files and handlers: another thread may hold their locks for ever.
    os.write(2, (words + "\n").encode())
    time.sleep(LAST_ANSWERS_S)
    os._exit(EXIT_CODE)
