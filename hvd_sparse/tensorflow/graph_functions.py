"""What the graph's functions do at every step: numpy in, numpy out, on the step object."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import AllToAll, Collective, Request
from hvd_sparse.collectives.topology import is_elastic
from hvd_sparse.core.step.records import BucketRun, StepRun, Ticket, joined
from hvd_sparse.core.step.step import Step
from hvd_sparse.errors import UnknownGradient
from hvd_sparse.exchanges.context import Arrival
from hvd_sparse.exchanges.contract import Conversation
from hvd_sparse.resilience.ledger import Ledger
from hvd_sparse.tensorflow.optimizer import Follower
from hvd_sparse.types import TensorSpec

logger = logging.getLogger("hvd_sparse")

LONGEST_WAIT_S = 5.0
"""After a failure; a graph that leaves out some of the traced tensors waits this long for
nothing."""


@dataclass(eq=False)
class MessageUnderWay:
    """An exchange of one tensor, or of several that travel together.

    Attributes
    ----------
    numbers : of their tickets
    """

    conversation: Conversation
    bucket: BucketRun
    numbers: frozenset[int]
    lock: threading.Lock = field(default_factory=threading.Lock)
    is_finished: bool = False
    failure: Exception | None = None

    def finish(self, received: np.ndarray, step: Step) -> None:
        """Take in what the last phase brought: once, in the thread that comes first.  A failure is
        raised in all."""
        with self.lock:
            if not self.is_finished:
                self.is_finished = True
                try:
                    step.receiver.receive(self.bucket, self._arrivals(received))
                except Exception as error:
                    self.failure = error
        if self.failure is not None:
            raise self.failure

    def _arrivals(self, received: np.ndarray) -> dict[int, Arrival]:
        try:
            self.conversation.send(received)
        except StopIteration as stop:
            arrivals: dict[int, Arrival] = stop.value
            return arrivals
        raise AssertionError("an exchange asks for more collectives than its phases name")


class Traffic:
    """Runs a tensor's half steps when TensorFlow's executor calls for them, in whatever thread that
    is.

    Every tensor is a bucket of its own, unless Horovod hands several over together: it reduces each
    gradient, or group of them, inside a branch of its own, and no tensor can pass from one branch's
    graph to another's.

    Parameters
    ----------
    step, collective : of the compressor
    tokens : positions by what ``identity.runtime_token`` gives for their variables
    ledger : is told what is sent and received
    """

    def __init__(
        self, step: Step, collective: Collective, tokens: Mapping[bytes, int], ledger: Ledger
    ) -> None:
        self._step = step
        self._collective = collective
        self._tokens = tokens
        self._ledger = ledger
        self._numbers = itertools.count()
        self._tickets: dict[int, Ticket] = {}
        self._messages: dict[int, MessageUnderWay] = {}
        self._dense_bytes: dict[str, int] = {}
        self._traced: set[str] = set()
        self._counted: StepRun | None = None
        self.follower: Follower | None = None

    def note_dense(self, spec: TensorSpec) -> None:
        """A tensor that Horovod reduces dense at every step; known when the graph is traced."""
        self._dense_bytes[spec.key] = spec.numel * spec.accumulator.itemsize

    def note_sparse(self, spec: TensorSpec) -> None:
        """A tensor that is sent at every step of some graph; known when it is traced."""
        self._traced.add(spec.key)

    @property
    def dense_bytes(self) -> int:
        """Of the tensors that Horovod reduces dense, in a step."""
        return sum(self._dense_bytes.values())

    def position(self, token: bytes) -> int | None:
        """Whose token it is; None for a variable that is not registered."""
        return self._tokens.get(token)

    def forget(self) -> None:
        """Let go of all that is under way: Horovod was started anew, and none of it will end."""
        self._tickets.clear()
        self._messages.clear()

    def send(
        self, gradient: np.ndarray, *how: Any
    ) -> tuple[np.ndarray, np.int64, np.ndarray, np.ndarray]:
        """``take`` and ``seal`` of a tensor that comes alone."""
        wire, number = self.take(gradient, *how, is_joined=False)
        return wire, number, *self.seal(number)

    def take(
        self,
        gradient: np.ndarray,
        token: Any,
        scale: Any,
        everything: Any = False,
        *,
        is_joined: bool = True,
    ) -> tuple[np.ndarray, np.int64]:
        """The array to allreduce, and the ticket's number, of a tensor that travels with others.

        everything : run dense, residual included

        Only reads the gradient, which is TensorFlow's own memory.
        """
        rank, world_size = self._collective.rank, self._collective.world_size
        position = self.position(as_bytes(token))
        if position is None:
            wire, ticket = self._refuse(gradient, rank, world_size)
        else:
            wire, ticket = self._step.sender.compress(
                position,
                gradient,
                rank,
                world_size,
                self._note(scale),
                everything=everything,
                is_joined=is_joined,
            )
        self._ledger.begin(ticket.key)
        number = next(self._numbers)
        self._tickets[number] = ticket
        self._count_dense(ticket.run)
        return wire, np.int64(number)

    def seal(self, *numbers: np.int64) -> tuple[np.ndarray, np.ndarray]:
        """The first array that the exchange of these tickets wants moved, with splits.

        They are of one step on every rank, and in the same order; the graph calls this when all are
        there.
        """
        tickets = [self._tickets[int(number)] for number in numbers]
        bucket, run = joined(tickets), tickets[0].run
        conversation = self._step.sender.converse(
            bucket, run, self._collective.rank, self._collective.world_size
        )
        message = MessageUnderWay(
            conversation, bucket, frozenset(int(number) for number in numbers)
        )
        self._messages |= dict.fromkeys(message.numbers, message)
        return _moved(next(conversation))

    def _refuse(
        self, gradient: np.ndarray, rank: int, world_size: int
    ) -> tuple[np.ndarray, Ticket]:
        error = UnknownGradient(
            f"a gradient of {gradient.size} entries belongs to no registered variable: "
            "give the compressor all variables that the tape or optimizer has"
        )
        return self._step.sender.poison(
            error, f"of {gradient.size} entries", gradient.dtype, rank, world_size
        )

    def advance(self, number: np.int64, received: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next array that the exchange wants moved, with splits."""
        return _moved(self._messages[int(number)].conversation.send(received))

    def receive(
        self, number: np.int64, reduced: np.ndarray, received: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """The reduced gradient, flat; on any error the step is taken back before it is raised.

        Of a step that has failed already, and whose failure is about to be raised, zeros, which
        nobody will see: only one thread is kept waiting until the step's other exchanges are
        through.
        """
        ticket, message = self._tickets.pop(int(number)), self._messages.pop(int(number))
        run = ticket.run
        run.received |= message.numbers  # all of its phases are over
        if run.is_raising and ticket.position is not None:
            spec = self._step.specs[ticket.position]
            return np.zeros(spec.numel, spec.accumulator)
        try:
            if run.failure is not None:
                raise run.failure
            ticket.report(reduced)
            message.finish(received, self._step)
            result = self._step.receiver.result(ticket, reduced, parameter)
        except Exception as error:
            self._ledger.clear()
            if (
                is_elastic()
            ):  # Horovod's elastic run ends in silence at errors that it does not know
                logger.error("%s: %s", type(error).__name__, error)
            run.is_raising, run.failure = True, run.failure or error
            self._wait_for_others(run)
            self._step.fail(run, error)
            run.is_raising = False
            raise
        self._ledger.end(ticket.key)
        return result

    def finish_dense(
        self, token: Any, scale: Any, reduced: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """What the optimizer is given for a tensor that Horovod reduced by itself."""
        ticket = self._step.receiver.enter_dense(self._tokens[as_bytes(token)], self._note(scale))
        return self._step.receiver.finish_dense(ticket, reduced, parameter)

    def _note(self, scale: Any) -> float:
        """The loss scale; the optimizer's rate, if it comes behind it, is noted."""
        values = np.ravel(scale)
        if self.follower is not None:
            self.follower.rate = float(values[1])
        return float(values[0])

    def _wait_for_others(self, run: StepRun) -> None:
        """Let the step's other tensors go through all phases: once this one has raised, TensorFlow
        drops what it has not begun, and the other ranks would wait for it."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        while len(run.received) < len(self._traced) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _count_dense(self, run: StepRun) -> None:
        if run is not self._counted:
            self._counted = run
            self._step.stats.count_bytes("dense", self.dense_bytes)


def as_bytes(token: Any) -> bytes:
    """TensorFlow hands a string over as bytes, or eagerly as an array that holds them."""
    return bytes(token.item() if isinstance(token, np.ndarray) else token)


def _moved(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """What an operation of the graph is fed: an array, and the splits of those that are split."""
    splits = request.splits if isinstance(request, AllToAll) else np.empty(0)
    return request.array, splits.astype(np.int32, copy=False)
