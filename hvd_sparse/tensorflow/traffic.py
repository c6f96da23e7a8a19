"""What the graph's functions do at every step: numpy in, numpy out, on the step object."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.collective import Collective
from ..core.runs import StepRun, Ticket
from ..core.step import Step
from ..types import TensorSpec


class Traffic:
    """Runs a tensor's half steps when TensorFlow's executor calls for them, in whatever thread that is.

    Every tensor is a bucket of its own: Horovod reduces each gradient inside a branch of its own, and no tensor can
    pass from one branch's graph to another's.
    """

    def __init__(self, step: Step, collective: Collective) -> None:
        self._step = step
        self._collective = collective
        self._tickets: dict[int, tuple[Ticket, Any]] = {}
        self._dense_bytes: dict[str, int] = {}
        self._counted: StepRun | None = None

    def note_dense(self, spec: TensorSpec) -> None:
        """A tensor that Horovod reduces dense at every step; known when the graph is traced."""
        self._dense_bytes[spec.key] = spec.numel * spec.accumulator.itemsize

    def send(self, position: int, gradient: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The array to allreduce, and the first that the exchange wants moved.  Only reads the gradient."""
        rank, world_size = self._collective.rank, self._collective.world_size
        wire, ticket = self._step.compress(position, gradient, rank, world_size)
        assert ticket.bucket is not None
        message = self._step.message(ticket.bucket, ticket.run, rank)
        conversation = self._step.configuration.exchange.run(message, rank, world_size)
        self._tickets[position] = (ticket, conversation)
        self._count_dense(ticket.run)
        return wire, next(conversation).array

    def advance(self, position: int, received: np.ndarray) -> np.ndarray:
        """The next array that the exchange wants moved."""
        array: np.ndarray = self._tickets[position][1].send(received).array
        return array

    def receive(self, position: int, reduced: np.ndarray, received: np.ndarray) -> np.ndarray:
        """The reduced gradient, flat; on any error the step is taken back before it is raised."""
        ticket, conversation = self._tickets.pop(position)
        if ticket.run.failure is not None:
            raise ticket.run.failure
        try:
            ticket.layout.read(reduced[: ticket.layout.size], ticket.key)
            assert ticket.bucket is not None
            self._step.receive(ticket.bucket, _finish(conversation, received))
            return self._step.result(ticket, reduced)
        except Exception as error:
            self._step.fail(ticket.run, error)
            raise

    def _count_dense(self, run: StepRun) -> None:
        if run is not self._counted:
            self._counted = run
            self._step.stats.count_bytes("dense", sum(self._dense_bytes.values()))


def _finish(conversation: Any, received: np.ndarray) -> Any:
    try:
        conversation.send(received)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("an exchange asks for more collectives than its phases name")
