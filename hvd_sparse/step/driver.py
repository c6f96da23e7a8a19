"""Moving a step's bytes, for frontends that can wait: numpy and PyTorch.

``compress`` starts a bucket's exchange as soon as the bucket is full.  The first ``decompress`` of
a step drives all of the step's exchanges, phase by phase, in registration order: Horovod asks for
results in hook order, which differs between ranks, so an exchange of two phases that only drove
itself would wait for one that waits for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Generic, NoReturn, TypeVar, cast

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending, Request
from hvd_sparse.errors import ExchangeTimeout, PeerFailure, SparseError
from hvd_sparse.exchanges.members import Arrival
from hvd_sparse.step.devices.contract import Late
from hvd_sparse.step.records import BucketRun, StepRun, TensorStep, Ticket, told_once
from hvd_sparse.step.step import Step
from hvd_sparse.wire.padding import Padding

Result = TypeVar("Result")

NOTHING = np.empty(0, np.float32)
"""For memories that need no parameter."""


class Conversation(Generic[Result]):
    """An exchange in progress: the generator and the collective that it waits for."""

    def __init__(
        self, generator: Generator[Request, np.ndarray, Result], collective: Collective, name: str
    ) -> None:
        self._generator = generator
        self._collective = collective
        self._name = name
        self._phase = 0
        self.pending: Pending | None = None
        self.result: Result | None = None
        self.is_done = False
        self._advance(None)

    def _advance(self, received: np.ndarray | None) -> None:
        try:
            request = (
                self._generator.send(received) if received is not None else next(self._generator)
            )
        except StopIteration as stop:
            self.result, self.is_done, self.pending = stop.value, True, None
            return
        # Horovod matches collectives by name: every phase has its own.
        name = self._name if self._phase == 0 else f"{self._name}.{self._phase}"
        self._phase += 1
        self.pending = request.start(self._collective, name)

    def step(self, timeout_s: float | None) -> None:
        """Wait for the phase under way and start the next."""
        assert self.pending is not None
        self._advance(self.pending.wait(timeout_s))

    def finish(self, timeout_s: float | None) -> Result:
        """Wait for all phases and return what the exchange brings."""
        while not self.is_done:
            self.step(timeout_s)
        return cast(Result, self.result)  # which may be None by its type


class Driver:
    """Joins a step object and a collective.

    Parameters
    ----------
    step : the tensors
    collective : of the process set that the gradients are reduced over
    name : part of every collective's name
    padding : of what exchanges gather; None for none
    """

    def __init__(
        self, step: Step, collective: Collective, name: str, padding: Padding | None = None
    ) -> None:
        self.step = step
        self.collective = collective
        self.name = name
        self._padding = padding
        self._under_way: dict[BucketRun, Conversation[dict[int, Arrival]]] = {}
        self._coming: list[tuple[BucketRun, StepRun]] = []
        """Full buckets that wait for a device before they can be exchanged."""
        self._current: StepRun | None = None
        self._rank = self._world_size = -1  # known from the first step on; some ranks have none
        if step.configuration.exchange.needs_nodes:
            step.place(collective.rank, collective.world_size, collective.nodes)

    def compress(
        self,
        position: int,
        gradient: np.ndarray,
        scale: float = 1.0,
        *,
        everything: bool = False,
        late: Late | None = None,
        stays: bool = False,
    ) -> tuple[np.ndarray, TensorStep]:
        """Take a gradient in as ``Step.compress`` does, and start the bucket's exchange when it
        is full."""
        if self._rank < 0:
            self._look_around()
        wire, ticket = self.step.compress(
            position,
            gradient,
            self._rank,
            self._world_size,
            scale,
            everything=everything,
            late=late,
            stays=stays,
        )
        run, bucket = ticket.run, ticket.bucket
        if run is not self._current:
            self._discard_old(run)
        if self._coming:
            self._start_delivered()
        # As early as possible: it travels while the backward pass goes on.
        if len(bucket.entered) == len(bucket.members):
            if bucket.begun:
                self.step.begin_passes(bucket)
            if bucket.delivery is None:
                self._start(bucket, run)
            else:
                self._coming.append((bucket, run))
        return wire, ticket

    def _start_delivered(self) -> None:
        """Start the exchanges of buckets for which a device need not be waited for any more."""
        for bucket, run in self._coming.copy():
            assert bucket.delivery is not None
            if bucket.delivery.is_here():
                self._start(bucket, run)

    def _look_around(self) -> None:
        """Ask for the rank and the size of the world: they stay as they are until ``forget``."""
        self._rank, self._world_size = self.collective.rank, self.collective.world_size

    def poison(
        self, error: Exception, key: str, dtype: np.dtype | type
    ) -> tuple[np.ndarray, Ticket]:
        """Tell of a failure as ``Step.poison`` does."""
        if self._rank < 0:
            self._look_around()
        wire, ticket = self.step.poison(error, key, dtype, self._rank, self._world_size)
        if ticket.run is not self._current:
            self._discard_old(ticket.run)
        return wire, ticket

    def decompress(
        self,
        reduced: np.ndarray,
        ticket: Ticket,
        parameter: np.ndarray = NOTHING,
        *,
        is_dropped: bool = False,
    ) -> np.ndarray:
        """The reduced gradient, flat; of a sparse step where the ticket says (``Ticket.out``).

        On any error the whole step is taken back before it is raised.

        is_dropped : nobody takes the result, on no rank: the tensor's step leaves no trace, and
            nothing is returned
        """
        if ticket.run.failure is not None:
            raise ticket.run.failure
        # Words of gradients that stand for no tensor have to reach the others before this raises.
        if ticket.run.errors:
            self.refuse(ticket)
        try:
            self.step.report(ticket, reduced)  # refuses before anything is waited for
            if not ticket.run.is_driven:
                self._drive(ticket.run)
            # Without a bucket it is a stranger's, which has just been refused.
            assert isinstance(ticket, TensorStep)
            if is_dropped:  # not completed: the tensor's next step rolls this one back
                return NOTHING
            return self.step.result(ticket, reduced, parameter)
        except Exception as error:
            # Horovod's own errors too: an elastic run goes on from the state before the step.
            self.step.fail(ticket.run, error)
            raise

    def has_arrived(self) -> bool:
        """Tell whether nothing that was started has to be waited for any more, each in its
        phase."""
        return all(pending.is_done() for pending in self.under_way())

    def under_way(self) -> list[Pending]:
        """Return what the exchanges that have been started wait for, each in its phase."""
        return [each.pending for each in self._under_way.values() if each.pending is not None]

    def forget(self) -> None:
        """Let go of all exchanges under way: Horovod was started anew, and none of them will
        end."""
        # Not finished as ``_discard_old`` does: the other side of these waits is gone.
        self._under_way.clear()
        self._coming.clear()
        self._current = None
        self._rank = self._world_size = -1

    def refuse(self, ticket: Ticket) -> NoReturn:
        """Raise what went wrong on this rank with a gradient that stands for no tensor.

        It has no bucket, so the words go into all of them: the other ranks wait for one.
        """
        run = ticket.run
        for index, members in enumerate(self.step.buckets):
            bucket = run.open(index, members)
            if not bucket.is_exchanged:
                self._start(bucket, run)
        error = PeerFailure("compressing failed on this rank: " + "; ".join(told_once(run.errors)))
        self.step.fail(run, error)
        raise error from ticket.error

    def abandon(
        self, run: StepRun, error: SparseError, carried: tuple[Ticket, np.ndarray] | None = None
    ) -> NoReturn:
        """Take a step back for a reason of this rank's own, and raise it.

        Its exchanges are finished before, as the other ranks wait for this one's part in them; what
        fails there is raised instead.

        carried : a tensor's ticket and its reduced carrier, which refuses before anything is waited
            for
        """
        try:
            if carried is not None:
                self.step.report(*carried)
            self._drive(run)
        except Exception as failure:
            self.step.fail(run, failure)
            raise
        self.step.fail(run, error)
        raise error

    def _discard_old(self, run: StepRun) -> None:
        """Begin a step: finish the exchanges that a failed one has left behind, as their names must
        be free again."""
        self._current = run
        for bucket, its_run in self._coming.copy():
            if its_run is not run:  # others, whose devices were quicker, may have started it
                self._start(bucket, its_run)
        for bucket, conversation in list(self._under_way.items()):
            if bucket.index not in run.buckets or run.buckets[bucket.index] is not bucket:
                del self._under_way[bucket]
                with contextlib.suppress(SparseError):  # the failed step has been reported already
                    conversation.finish(self.step.configuration.timeout_s)

    def _start(self, bucket: BucketRun, run: StepRun) -> None:
        collective = self.collective
        if self._coming:
            self._coming = [each for each in self._coming if each[0] is not bucket]
        generator = self.step.converse(bucket, run, self._rank, self._world_size)
        if self._padding is not None:
            generator = self._padding.carry(generator, bucket.index)
        bucket.is_exchanged = True
        spans = self.step.pipeline.spans
        if spans.is_heard:
            bucket.began_s = spans.now()
        name = f"hvd_sparse.{self.name}.{bucket.index}"
        self._under_way[bucket] = Conversation(generator, collective, name)

    def _drive(self, run: StepRun) -> None:
        """Finish all exchanges of a step; the first failure is raised when all are done."""
        run.is_closed = True
        failure = self._finish(run)
        if isinstance(failure, PeerFailure):
            # All ranks know by now.  The one that failed may have spoken in buckets that nobody
            # else has entered: meet it there in this step, or its words would meet the next.
            for index, members in enumerate(self.step.buckets):
                run.open(index, members)
            self._finish(run)
        if failure is not None:
            raise failure
        run.is_driven = True

    def _finish(self, run: StepRun) -> SparseError | None:
        active = []
        # In one order on all ranks, whatever the order of their hooks: phases meet by it.
        for index in sorted(run.buckets):
            bucket = run.buckets[index]
            # One that is not full lacks a tensor on this rank, which the message tells the others.
            if not bucket.is_exchanged:
                self._start(bucket, run)
            if bucket in self._under_way:
                active.append(bucket)
        failure: SparseError | None = None
        while active:
            waiting, active = active, []
            for bucket in waiting:
                try:
                    if not self._advance(bucket):
                        active.append(bucket)
                except ExchangeTimeout:  # nobody can be waited for any more
                    raise
                except SparseError as error:
                    self._under_way.pop(bucket, None)
                    failure = failure or error
        return failure

    def _advance(self, bucket: BucketRun) -> bool:
        """Wait for a phase of a bucket's exchange; tell whether it was the last."""
        conversation = self._under_way[bucket]
        try:
            conversation.step(self.step.configuration.timeout_s)
        except ExchangeTimeout as error:
            keys = ", ".join(self.step.specs[i].key for i in bucket.members)
            raise ExchangeTimeout(f"{error}; waiting for the tensors {keys}") from None
        if not conversation.is_done:
            return False
        del self._under_way[bucket]
        if bucket.began_s:
            keys = ", ".join(self.step.specs[i].key for i in bucket.members)
            name = f"hvd_sparse.{self.name}.{bucket.index}"
            self.step.spans.tell("exchange", f"{name}: {keys}", bucket.began_s)
        self.step.receive(bucket, conversation.result or {})
        return True
