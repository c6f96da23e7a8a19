"""No rank waits for ever: who keeps this one waiting, and an end to it.

Horovod's own wait has no limit, and releases Python's lock.  So a thread looks at what this rank
has submitted and not got back.  When that is older than ``timeout_s`` it asks the other ranks, says
which have not submitted what, and ends the process; the launcher then ends the others.  A wait of
this package raises ``ExchangeTimeout`` first.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from hvd_sparse.resilience.awake import awake_s, stood_s
from hvd_sparse.resilience.ledger import Ledger
from hvd_sparse.resilience.listening import PATIENCE_S, Listener
from hvd_sparse.resilience.peers import Answer, Endpoint, Question, addresses, ask_all
from hvd_sparse.resilience.sight import look_at, process_of, this_process
from hvd_sparse.resilience.stack import (
    JOIN_REASON,
    is_in_join,
    place_of_main_thread,
    prepare_end,
    was_ended_by_join,
)
from hvd_sparse.resilience.verdicts import (
    describe_answers,
    is_behind,
    is_gone,
    is_in_doubt,
    names,
    remedy,
)

EXIT_CODE = 124
"""That of timeout(1)."""
GRACE_S = 30.0
"""For a program to handle the error that our own wait raises, before the process is ended."""
LAST_ANSWERS_S = 1.0
"""Other ranks' limits end at about the same time; they should not find this one gone."""
TIMES_IN_DOUBT = 2
"""The limit, where nobody is known to be gone."""

logger = logging.getLogger("hvd_sparse")


class Watchdog:
    """Watches one compressor's ledger.

    Parameters
    ----------
    name : of the compressor
    rank : of this process in the compressor's process set
    timeout_s : seconds that a submitted tensor may take; None only answers the other ranks
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
        """Where this process listens, under the rank that it has now."""
        self.rank = rank
        here = self._listener
        return Endpoint(
            rank, socket.gethostname(), addresses(), here.port, here.token, this_process()
        )

    def meet(self, endpoints: Sequence[Endpoint]) -> None:
        """The other ranks are there, all at the same point of their programs."""
        self.ledger.restart()
        self._peers = [endpoint for endpoint in endpoints if endpoint.token != self._listener.token]

    def close(self) -> None:
        """Stop watching, and answering."""
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
        """What is known of a wait: the pending tensors, and the ranks that have not submitted them.

        The program is about to be told; should it wait on for Horovod, in handling that or at its
        exit, it is ended.
        """
        pending = self.ledger.pending()
        self._given_up = self._describe(pending, self._ask(pending))
        self.ledger.clear()
        return self._given_up

    # -- the threads ------------------------------------------------------------------------------

    def _answer(self, question: dict[str, Any]) -> dict[str, Any]:
        sight = look_at(process_of(question["process"]))
        return {
            "behind": self.ledger.behind(question["submitted"]),
            "pending": len(self.ledger.pending()),
            "place": place_of_main_thread(),
            "is_joined": is_in_join() or was_ended_by_join(),
            "stood_s": stood_s(float(question["waited_s"])),
            "sight": None if sight is None else [sight.state, sight.ran],
        }

    def _run(self) -> None:
        assert self._timeout_s is not None
        while not self._is_over.wait(min(1.0, self._timeout_s / 10)):
            overdue = self.ledger.pending(self._timeout_s)
            self._was_in_doubt &= bool(overdue)
            if self.ledger.idle_s <= self._timeout_s:
                self._silent.clear()
            if self._given_up and self.ledger.idle_s > GRACE_S:
                self._end(self._given_up)
            elif overdue:
                self._judge(overdue)
            elif is_in_join() and self.ledger.has_begun:
                self._judge_join()
            elif (
                self.ledger.has_begun
                and min(self.ledger.idle_s, self._since_probe()) > self._timeout_s
            ):
                self._probe()

    def _judge(self, overdue: dict[str, int]) -> None:
        """A rank that was busy may come to its tensors yet, as may those that wait for it."""
        answers = self._ask(overdue)
        assert self._timeout_s is not None
        if not overdue.items() & self.ledger.pending(self._timeout_s).items():
            return  # they have come meanwhile
        self._was_in_doubt |= self._excuses(answers)
        is_certain = is_gone(answers) or (is_behind(answers) and not self._was_in_doubt)
        if is_certain or self.ledger.oldest_s() > TIMES_IN_DOUBT * self._timeout_s:
            self._end(self._describe(overdue, answers))

    def _judge_join(self) -> None:
        """Joined ranks are let go as long as no other waits for them."""
        if any(answer.pending for answer in self._ask({})):
            self._end(JOIN_REASON)

    def _probe(self) -> None:
        """Long silence: a rank that is paused may keep Horovod from finishing what this package
        does not see."""
        assert self._timeout_s is not None
        answers = self._ask({})
        silent = {answer.rank for answer in answers if answer.state == "silent"}
        paused = [
            each for each in answers if each.state == "paused" or each.rank in silent & self._silent
        ]
        self._probed_at, self._silent = (
            awake_s(),
            silent,
        )  # one that nobody can see may be busy: it is asked once more
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
        waits = f"rank {self.rank} waits for {names(list(pending))} since {self.ledger.oldest_s():.0f} s"
        if not answers:
            return (
                f"{waits}; the other ranks are unknown, as they have not come to the first exchange"
            )
        return f"{waits}; " + describe_answers(answers, pending)

    def _end(self, why: str) -> None:
        if self._is_over.is_set():
            return
        if self.ledger.is_waiting:  # our own wait raises ExchangeTimeout at about this time
            logger.error("%s; the process ends in %.0f s", why, GRACE_S)
            if self._is_over.wait(GRACE_S):
                return
        say_and_exit(f"hvd_sparse {self.name!r}: ExchangeTimeout: {why}. {remedy(why)}")


def say_and_exit(words: str) -> None:
    """Last words, and the end of the process whatever its other threads do."""
    os.write(2, (words + "\n").encode())
    time.sleep(LAST_ANSWERS_S)
    os._exit(EXIT_CODE)
