"""No rank waits for ever: who keeps this one waiting, and an end to it.

Horovod's own wait has no limit, and releases Python's lock.  So a thread looks at what this rank
has submitted and not got back.  When that is older than ``timeout_s`` it asks the other ranks, says
which have not submitted what, and ends the process; the launcher then ends the others.  A wait of
this package raises ``ExchangeTimeout`` first.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from hvd_sparse.resilience.ledger import Ledger
from hvd_sparse.resilience.peers import PATIENCE_S, Answer, Endpoint, Listener, ask_all
from hvd_sparse.resilience.stack import (
    JOIN_REASON,
    is_in_join,
    place_of_main_thread,
    prepare_end,
    was_ended_by_join,
)

EXIT_CODE = 124
"""That of timeout(1)."""
GRACE_S = 30.0
"""For a program to handle the error that our own wait raises, before the process is ended."""
LAST_ANSWERS_S = 1.0
"""Other ranks' limits end at about the same time; they should not find this one gone."""
LONGEST_LIST = 8

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
        self._listener = Listener(rank, self._answer)
        prepare_end()
        if timeout_s is not None:
            threading.Thread(target=self._run, name="hvd_sparse watchdog", daemon=True).start()

    def endpoint(self, rank: int) -> Endpoint:
        """Where this process listens, under the rank that it has now."""
        self.rank = rank
        return dataclasses.replace(self._listener.endpoint, rank=rank)

    def meet(self, endpoints: Sequence[Endpoint]) -> None:
        """The other ranks are there, all at the same point of their programs."""
        self.ledger.restart()
        self._peers = [
            endpoint for endpoint in endpoints if endpoint.token != self._listener.endpoint.token
        ]

    def close(self) -> None:
        """Stop watching, and answering."""
        self._is_over.set()
        self._listener.close()
        self.ledger.restart()

    def give_up(self) -> str:
        """What is known of a wait: the pending tensors, and the ranks that have not submitted them.

        The program is about to be told; should it wait on for Horovod, in handling that or at its
        exit, it is ended.
        """
        pending = self.ledger.pending()
        self._given_up = self._describe(pending, self._ask(pending))
        self.ledger.clear()
        return self._given_up

    # -- the threads
    # --------------------------------------------------------------------------------------------------

    def _answer(self, submitted: dict[str, int]) -> dict[str, Any]:
        return {
            "behind": self.ledger.behind(submitted),
            "pending": len(self.ledger.pending()),
            "place": place_of_main_thread(),
            "is_joined": is_in_join() or was_ended_by_join(),
        }

    def _run(self) -> None:
        assert self._timeout_s is not None
        while not self._is_over.wait(min(1.0, self._timeout_s / 10)):
            overdue = self.ledger.pending(self._timeout_s)
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
        answers = self._ask(overdue)
        is_certain = not answers or any(
            answer.state != "answers" or answer.behind for answer in answers
        )
        assert self._timeout_s is not None
        if is_certain or self.ledger.oldest_s() > 2 * self._timeout_s:
            self._end(self._describe(overdue, answers))

    def _judge_join(self) -> None:
        """Joined ranks are let go as long as no other waits for them."""
        if any(answer.pending for answer in self._ask({})):
            self._end(JOIN_REASON)

    def _probe(self) -> None:
        """Long silence: a rank that is paused may keep Horovod from finishing what this package
        does not see."""
        self._probed_at = time.monotonic()
        paused = [answer for answer in self._ask({}) if answer.state == "paused"]
        if paused:
            self._end(
                f"for {self.ledger.idle_s:.0f} s nothing was exchanged, and "
                + _describe_answers(paused, {})
            )

    def _since_probe(self) -> float:
        return time.monotonic() - self._probed_at

    def _ask(self, submitted: dict[str, int]) -> list[Answer]:
        return ask_all(
            self._peers, submitted, min(PATIENCE_S, max(2.0, self._timeout_s or PATIENCE_S))
        )

    def _describe(self, pending: dict[str, int], answers: Sequence[Answer]) -> str:
        waits = f"rank {self.rank} waits for {_names(list(pending))} since {self.ledger.oldest_s():.0f} s"
        if not answers:
            return (
                f"{waits}; the other ranks are unknown, as they have not come to the first exchange"
            )
        return f"{waits}; " + _describe_answers(answers, pending)

    def _end(self, why: str) -> None:
        if self._is_over.is_set():
            return
        if self.ledger.is_waiting:  # our own wait raises ExchangeTimeout at about this time
            logger.error("%s; the process ends in %.0f s", why, GRACE_S)
            if self._is_over.wait(GRACE_S):
                return
        say_and_exit(f"hvd_sparse {self.name!r}: ExchangeTimeout: {why}. {_remedy(why)}")


def say_and_exit(words: str) -> None:
    """Last words, and the end of the process whatever its other threads do."""
    os.write(2, (words + "\n").encode())
    time.sleep(LAST_ANSWERS_S)
    os._exit(EXIT_CODE)


def _remedy(why: str) -> str:
    return (
        "This process ends now"
        if why == JOIN_REASON
        else (
            "This process ends now, as nothing else ends Horovod's wait; see that rank's output, "
            "or raise timeout_s"
        )
    )


def _describe_answers(answers: Sequence[Answer], pending: dict[str, int]) -> str:
    words = [
        _describe_answer(answer, pending)
        for answer in answers
        if answer.state != "answers" or answer.behind
    ]
    if not words:
        return "all ranks answer and have submitted them: the network, or Horovod itself, is stuck"
    hidden = len(words) - LONGEST_LIST
    return "; ".join(words[:LONGEST_LIST]) + (f"; and {hidden} more ranks" if hidden > 0 else "")


def _describe_answer(answer: Answer, pending: dict[str, int]) -> str:
    if answer.state == "paused":
        return f"rank {answer.rank} takes connections and does not answer: its process is paused, or its machine overloaded"
    if answer.state == "ended":
        return f"rank {answer.rank} has ended or closed its compressor"
    if answer.state == "unreachable":
        return (
            f"rank {answer.rank} could not be asked at {', '.join(answer.tried) or 'any address'}"
        )
    what = "them" if len(answer.behind) == len(pending) else _names(answer.behind)
    where = JOIN_REASON if answer.is_joined else f"it is at {answer.place}"
    return f"rank {answer.rank} has not submitted {what}: {where}"


def _names(names: Sequence[str]) -> str:
    hidden = len(names) - LONGEST_LIST
    return ", ".join(names[:LONGEST_LIST]) + (f" and {hidden} more tensors" if hidden > 0 else "")
