"""The driver runs a step's collectives, for frontends that can wait for them: numpy and PyTorch.

``compress`` returns a ticket, the record of one gradient in one step, and starts a bucket's
exchange when the bucket is full. The step's first ``decompress`` finishes all exchanges, in the
order of the buckets. Hooks run in different orders on different ranks, so if each hook finished
only the exchange of its own tensor, ranks could wait for each other forever.
"""

from __future__ import annotations

import contextlib
from typing import NoReturn

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending, sleep_until
from hvd_sparse.errors import ExchangeTimeout, PeerFailure, SparseError
from hvd_sparse.step.records import BucketRun, Late, StepRun, TensorStep, Ticket, distinct
from hvd_sparse.step.step import Step
from hvd_sparse.types import Value

NOTHING = np.empty(0, np.float32)
"""Argument ``parameter`` of ``decompress`` if the memory does not need the parameter's value."""


class Driver:
    """Runs the exchanges of one compressor. The names of their collectives, by which Horovod
    matches the collectives of all ranks, contain ``name``."""

    def __init__(self, step: Step, collective: Collective, name: str) -> None:
        self.step = step
        self.collective = collective
        self.name = name
        self._under_way: dict[BucketRun, Pending] = {}
        """For each bucket whose exchange is running, the present collective."""
        self._coming: dict[BucketRun, StepRun] = {}
        """Full buckets whose data is still being copied from a device to the host."""
        self._current: StepRun | None = None
        step.place(collective)

    def compress(
        self,
        position: int,
        gradient: np.ndarray,
        scale: float = 1.0,
        *,
        everything: bool = False,
        late: Late | None = None,
    ) -> tuple[np.ndarray, TensorStep]:
        wire, ticket = self.step.compress(
            position, gradient, scale, everything=everything, late=late
        )
        run, bucket = ticket.run, ticket.bucket
        if run is not self._current:
            self._discard_old(run)
        if self._coming:
            for each, its_run in list(self._coming.items()):
                if each.has_arrived is not None and each.has_arrived():
                    self._start(each, its_run)
        # Start as early as possible, so that communication overlaps the backward pass.
        if len(bucket.entered) == len(bucket.members):
            if bucket.begun:
                self.step.begin_passes(bucket)
            if bucket.has_arrived is None:
                self._start(bucket, run)
            else:
                self._coming[bucket] = run
        return wire, ticket

    def poison(
        self, error: Exception, key: str, dtype: np.dtype | type, *, has_carrier: bool = True
    ) -> tuple[np.ndarray, Ticket]:
        wire, ticket = self.step.poison(error, key, dtype, has_carrier=has_carrier)
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
        """Return a tensor's reduced gradient, flat. After any error, the step is rolled back for
        all its tensors. With ``is_dropped``, no rank uses the result. Then an empty array is
        returned, and the caller undoes the tensor's step by ``Transactions.drop``."""
        if ticket.run.failure is not None:
            raise ticket.run.failure
        # The errors of unregistered gradients must reach the other ranks before this rank raises.
        if ticket.run.errors:
            self.refuse(ticket)
        try:
            self.step.report(ticket, reduced)  # checks the carrier before any wait
            if not ticket.run.is_driven:
                self._drive(ticket.run)
            # Tickets without a bucket have raised above.
            assert isinstance(ticket, TensorStep)
            if is_dropped:
                return NOTHING
            return self.step.result(ticket, reduced, parameter)
        except BaseException as error:
            # Roll back after Horovod's errors and KeyboardInterrupt, too: an elastic run or a last
            # checkpoint continues from the old state.
            self.step.transactions.fail(ticket.run, error)
            raise

    def finish_dense(
        self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return the result of ``Receiver.finish_dense``. After any error, the step is rolled back
        for all its tensors."""
        try:
            return self.step.finish_dense(ticket, reduced, parameter)
        except BaseException as error:
            self.step.transactions.fail(ticket.run, error)
            raise

    def has_arrived(self) -> bool:
        return all(pending.is_done() for pending in self._under_way.values())

    def forget(self) -> None:
        """Drop all running exchanges. They can never end, because Horovod was restarted."""
        self._under_way.clear()
        self._coming.clear()
        self._current = None

    def refuse(self, ticket: Ticket) -> NoReturn:
        """Raise PeerFailure with this rank's error about an unregistered tensor. Before that, run
        the exchanges of all buckets to their end, because other ranks may wait for them. This
        rank's messages in these exchanges report the error."""
        run = ticket.run
        error = PeerFailure("compressing failed on this rank: " + "; ".join(distinct(run.errors)))
        self.step.transactions.fail(run, error)
        # If no carrier and no message reports the error, the other ranks complete their step, and
        # exchange no more buckets than this rank has begun.
        if run.is_reported or any(each.conversation is None for each in run.buckets.values()):
            for index, members in enumerate(self.step.buckets):
                bucket = run.open(index, members)
                if bucket.conversation is None:
                    self._start(bucket, run)
        self._finish_as_results_arrive()
        raise error from ticket.error

    def _finish_as_results_arrive(self) -> None:
        """Run a failed step's exchanges to their end, or until none advances within the time limit.
        The other ranks may first end the exchanges that they have begun, and then run those of the
        remaining buckets. So always advance the exchanges whose results have arrived: in a fixed
        order, the ranks could wait for each other."""

        def arrived() -> list[BucketRun]:
            return [each for each, pending in self._under_way.items() if pending.is_done()]

        limit_s = self.step.configuration.timeout_s
        while self._under_way and sleep_until(lambda: bool(arrived()), limit_s):
            for bucket in arrived():
                with contextlib.suppress(Exception):  # this rank has an error of its own to raise
                    self._advance(bucket)

    def abandon(
        self, run: StepRun, error: SparseError, carried: tuple[Ticket, np.ndarray] | None = None
    ) -> NoReturn:
        """Roll a step back because of ``error``, and raise ``error``. Before that, finish the
        step's exchanges, because the other ranks wait for them; if an exchange fails, its error is
        raised instead. ``carried`` is a ticket (the record of one gradient) and its reduced carrier
        (see ``wire.carrier``). If it is given, the carrier is checked first."""
        try:
            if carried is not None:
                self.step.report(*carried)
            self._drive(run)
        except Exception as failure:
            self.step.transactions.fail(run, failure)
            raise
        self.step.transactions.fail(run, error)
        raise error

    def _discard_old(self, run: StepRun) -> None:
        """Make ``run``, the record of a new step, the current step. First finish the exchanges that
        a failed step has not finished, because the exchanges of the new step have the same
        names."""
        self._current = run
        for bucket, its_run in list(self._coming.items()):
            if its_run is not run:
                self._start(bucket, its_run)
        old = [each for each in self._under_way if run.buckets.get(each.index) is not each]
        # The ranks may have begun the exchanges in different orders.
        old.sort(key=lambda bucket: bucket.index)
        limit_s = self.step.configuration.timeout_s
        for bucket in old:
            try:
                while self._proceed(bucket, self._under_way.pop(bucket).wait(limit_s)):
                    pass
            except ExchangeTimeout:  # the others would take as long, and fail too
                break
            except Exception:
                # The failed step has raised its own error, and a broken world fails this step, too.
                pass
            bucket.arrivals = {}  # because the memories do not know this result
        for bucket in old:
            self._under_way.pop(bucket, None)

    def _start(self, bucket: BucketRun, run: StepRun) -> None:
        self._coming.pop(bucket, None)
        self.step.converse(bucket, run)
        run.is_reported |= bool(run.errors)  # the message has them
        self._proceed(bucket, None)

    def _proceed(self, bucket: BucketRun, received: Value) -> bool:
        """Start the next collective of a bucket's exchange, and return whether there is one."""
        request = bucket.advance(received)
        if request is None:
            return False
        # Horovod matches collectives by name, so every phase needs a name of its own.
        phase = f".{bucket.phase}" if bucket.phase else ""
        bucket.phase += 1
        name = f"hvd_sparse.{self.name}.{bucket.index}{phase}"
        self._under_way[bucket] = request.start(self.collective, name)
        return True

    def _drive(self, run: StepRun) -> None:
        run.is_closed = True
        failure = self._finish(run)
        if isinstance(failure, PeerFailure):
            # All ranks know of the failure now. Exchange the other buckets, too, because the failed
            # rank may have sent messages in them, which would be matched with the next step's.
            for index, members in enumerate(self.step.buckets):
                run.open(index, members)
            self._finish(run)
        if failure is not None:
            raise failure
        run.is_driven = True

    def _finish(self, run: StepRun) -> SparseError | None:
        active = []
        # In the same order on all ranks, because torch.distributed matches collectives by order.
        for index in sorted(run.buckets):
            bucket = run.buckets[index]
            # If the bucket is not full, this rank's message shows which tensors are missing.
            if bucket.conversation is None:
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
                except ExchangeTimeout:  # no further wait can succeed
                    raise
                except SparseError as error:
                    failure = failure or error
        return failure

    def _advance(self, bucket: BucketRun) -> bool:
        """Wait for a bucket's collective, and start the next. Return whether there was none."""
        try:
            received = self._under_way[bucket].wait(self.step.configuration.timeout_s)
            is_over = not self._proceed(bucket, received)
        except ExchangeTimeout as error:
            keys = ", ".join(self.step.specs[i].key for i in bucket.members)
            raise ExchangeTimeout(f"{error}; waiting for the tensors {keys}") from None
        except Exception:
            del self._under_way[bucket]  # no further wait is possible
            raise
        if is_over:
            del self._under_way[bucket]
            self.step.receive(bucket)
        return is_over
