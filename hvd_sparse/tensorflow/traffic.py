"""What the graph's functions do at every step: numpy in, numpy out, on the step object."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..core.collective import AllToAll, Collective, Request
from ..core.placement import is_elastic
from ..core.runs import BucketRun, StepRun, Ticket
from ..core.step import Step
from ..errors import UnknownGradient
from ..runtime.ledger import Ledger
from ..types import TensorSpec

logger = logging.getLogger("hvd_sparse")

LONGEST_WAIT_S = 5.0
"""After a failure; a graph that leaves out some of the traced tensors waits this long for nothing."""


class Traffic:
    """Runs a tensor's half steps when TensorFlow's executor calls for them, in whatever thread that is.

    Every tensor is a bucket of its own: Horovod reduces each gradient inside a branch of its own, and no tensor can
    pass from one branch's graph to another's.

    Parameters
    ----------
    step, collective : of the compressor
    tokens : positions by what ``identity.runtime_token`` gives for their variables
    ledger : is told what is sent and received
    """

    def __init__(self, step: Step, collective: Collective, tokens: Mapping[bytes, int], ledger: Ledger) -> None:
        self._step = step
        self._collective = collective
        self._tokens = tokens
        self._ledger = ledger
        self._numbers = itertools.count()
        self._under_way: dict[int, tuple[Ticket, Any]] = {}
        self._dense_bytes: dict[str, int] = {}
        self._traced: set[str] = set()
        self._counted: StepRun | None = None

    def note_dense(self, spec: TensorSpec) -> None:
        """A tensor that Horovod reduces dense at every step; known when the graph is traced."""
        self._dense_bytes[spec.key] = spec.numel * spec.accumulator.itemsize

    def note_sparse(self, spec: TensorSpec) -> None:
        """A tensor that is sent at every step of some graph; known when it is traced."""
        self._traced.add(spec.key)

    def forget(self) -> None:
        """Let go of all that is under way: Horovod was started anew, and none of it will end."""
        self._under_way.clear()

    def send(self, gradient: np.ndarray, token: Any, scale: Any) -> tuple[np.ndarray, np.int64, np.ndarray, np.ndarray]:
        """The array to allreduce, the ticket's number, and the first array that the exchange wants moved, with splits.

        Only reads the gradient, which is TensorFlow's own memory.
        """
        rank, world_size = self._collective.rank, self._collective.world_size
        position = self._tokens.get(_as_bytes(token))
        if position is None:
            wire, ticket = self._refuse(gradient, rank, world_size)
        else:
            wire, ticket = self._step.compress(position, gradient, rank, world_size, float(scale))
        self._ledger.begin(ticket.key)
        bucket = ticket.bucket or BucketRun(-1, ())
        conversation = self._step.converse(bucket, ticket.run, rank, world_size)
        array, splits = _moved(next(conversation))
        number = next(self._numbers)
        self._under_way[number] = (ticket, conversation)
        self._count_dense(ticket.run)
        return wire, np.int64(number), array, splits

    def _refuse(self, gradient: np.ndarray, rank: int, world_size: int) -> tuple[np.ndarray, Ticket]:
        error = UnknownGradient(
            f"a gradient of {gradient.size} entries belongs to no registered variable: "
            "give the compressor all variables that the tape or optimizer has"
        )
        return self._step.poison(error, f"of {gradient.size} entries", gradient.dtype, rank, world_size)

    def advance(self, number: np.int64, received: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The next array that the exchange wants moved, with splits."""
        return _moved(self._under_way[int(number)][1].send(received))

    def receive(self, number: np.int64, reduced: np.ndarray, received: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        """The reduced gradient, flat; on any error the step is taken back before it is raised.

        Of a step that has failed already, and whose failure is about to be raised, zeros, which nobody will see: only one
        thread is kept waiting until the step's other exchanges are through.
        """
        ticket, conversation = self._under_way.pop(int(number))
        run = ticket.run
        run.received.add(int(number))
        if run.is_raising and ticket.position is not None:
            spec = self._step.specs[ticket.position]
            return np.zeros(spec.numel, spec.accumulator)
        try:
            if run.failure is not None:
                raise run.failure
            ticket.report(reduced)
            arrivals = _finish(conversation, received)
            self._step.receive(ticket.bucket or BucketRun(-1, ()), arrivals)
            result = self._step.result(ticket, reduced, parameter)
        except Exception as error:
            self._ledger.clear()
            if is_elastic():  # Horovod's elastic run ends in silence at errors that it does not know
                logger.error("%s: %s", type(error).__name__, error)
            run.is_raising, run.failure = True, run.failure or error
            self._wait_for_others(run)
            self._step.fail(run, error)
            run.is_raising = False
            raise
        self._ledger.end(ticket.key)
        return result

    def finish_dense(self, token: Any, scale: Any, reduced: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        """What the optimizer is given for a tensor that Horovod reduced by itself."""
        ticket = self._step.enter_dense(self._tokens[_as_bytes(token)], float(scale))
        return self._step.finish_dense(ticket, reduced, parameter)

    def _wait_for_others(self, run: StepRun) -> None:
        """Let the step's other tensors go through all phases: once this one has raised, TensorFlow drops what it has
        not begun, and the other ranks would wait for it."""
        deadline = time.monotonic() + LONGEST_WAIT_S
        while len(run.received) < len(self._traced) and time.monotonic() < deadline:
            time.sleep(0.001)

    def _count_dense(self, run: StepRun) -> None:
        if run is not self._counted:
            self._counted = run
            self._step.stats.count_bytes("dense", sum(self._dense_bytes.values()))


def _as_bytes(token: Any) -> bytes:
    """TensorFlow hands a string over as bytes, or eagerly as an array that holds them."""
    return bytes(token.item() if isinstance(token, np.ndarray) else token)


def _moved(request: Request) -> tuple[np.ndarray, np.ndarray]:
    """What an operation of the graph is fed: an array, and the splits of those that are split."""
    splits = request.splits if isinstance(request, AllToAll) else np.empty(0)
    return request.array, splits.astype(np.int32, copy=False)


def _finish(conversation: Any, received: np.ndarray) -> Any:
    try:
        conversation.send(received)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("an exchange asks for more collectives than its phases name")
