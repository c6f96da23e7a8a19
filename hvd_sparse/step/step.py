"""The step object: state of all tensors of a compressor, and this rank's sending half of a step.

It calls no collective: ``step.driver`` and the TensorFlow frontend move the bytes.

A local failure never raises in ``compress``, because the other ranks would wait for a collective
that this rank never submits.  The carrier's flag and the bucket's message report the failure, and
all ranks raise alike.
"""

from __future__ import annotations

import numpy as np

from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.exchanges.contract import Conversation
from hvd_sparse.exchanges.members import Arrival, Member, Outgoing
from hvd_sparse.step.devices.contract import Late
from hvd_sparse.step.devices.passes import BucketPasses
from hvd_sparse.step.group_selection import send_merged
from hvd_sparse.step.loss_scale import check_scale, unscaled
from hvd_sparse.step.receiver import Receiver
from hvd_sparse.step.records import BucketRun, StepRun, TensorStep, Ticket, in_words, told_once
from hvd_sparse.wire.carrier import CHECKSUM_MASK, CarrierLayout, carrier_layout
from hvd_sparse.wire.checksum import crc32

SMALL = 1 << 16
"""Entries of a tensor whose pass costs less than the calls around it.

Such tensors of a bucket are taken in one after the other once it is full, unless somebody listens
to what each takes: between two gradients a backward pass and Horovod have the caches, and calls on
cold caches take about twice as long."""


class Step(BucketPasses, Receiver):
    """All tensors of a compressor and the step that they are in: takes gradients in, and speaks for
    this rank.
    """

    def compress(
        self,
        position: int,
        gradient: np.ndarray,
        rank: int,
        world_size: int,
        scale: float = 1.0,
        *,
        is_joined: bool = False,
        everything: bool = False,
        late: Late | None = None,
        stays: bool = False,
    ) -> tuple[np.ndarray, TensorStep]:
        """Take a gradient in; return the flat array that Horovod is to reduce, and the ticket.

        The array is the carrier, followed by all that was accumulated where this step of the tensor
        runs dense.

        Parameters
        ----------
        gradient : flat, C-contiguous, of the accumulator's dtype
        scale : by which the loss, and so the gradient, was multiplied; the same on all ranks
        is_joined : buckets of other tensors may be joined with this one's before its message is
            made
        everything : run dense, residual included, whatever the configuration says; the same on all
            ranks
        late : the gradient while it is on its way from a device; None where it is here
        stays : nobody writes to the gradient's memory before its bucket's message is made
        """
        with self.transactions.lock:
            run, state = self.transactions.enter(position)
            index = self.bucket_of[position]
            bucket = run.buckets.get(index) or run.open(index, self.buckets[index])
            bucket.entered.add(position)
        # Asked once a step: what is sent now must be decoded by the same parts.
        parts = self.fixed_parts or self.begin(position, state)
        dense = everything or self.goes_dense(position, parts, state, world_size)
        # A dense step's carrier shares an array with the gradient, and so its dtype.
        layout = self.layout(state.spec.accumulator, world_size, alone=not dense)
        ticket = TensorStep(run, layout, position, bucket, state, parts, scale)
        is_alone = len(bucket.members) == 1
        waits = (is_joined or not is_alone) and self.configuration.select_over == "group"
        pipeline = self.pipeline
        notes = late is not None or (
            stays and not is_alone and gradient.size <= SMALL and not pipeline.spans.is_heard
        )
        try:
            if scale != 1.0:
                check_scale(scale)
            self.prepare(position, state, 1.0 if dense else parts.density)
            if notes and not dense and not waits and pipeline.selects_late:
                ticket.late = gradient if late is None else late
                bucket.begun.append(ticket)
            else:
                given = unscaled(gradient if late is None else late.array(), scale)
                self._take_in(ticket, given, rank, world_size, dense=dense, waits=waits)
        # Nothing is raised here: the other ranks wait for this tensor's carrier.
        except NonFiniteGradient as error:
            self.note_nonfinite(ticket, error, dense=dense)
        except Exception as error:
            ticket.fail(error)
        if not dense and ticket.error is None:
            bucket.sending[position] = ticket
        return self._write_wire(ticket, rank, dense), ticket

    def _take_in(
        self,
        ticket: TensorStep,
        gradient: np.ndarray,
        rank: int,
        world_size: int,
        *,
        dense: bool,
        waits: bool,
    ) -> None:
        """Take a gradient in now: select from it, or let that wait for its device or its group."""
        state, parts, pipeline = ticket.state, ticket.parts, self.pipeline
        if waits and not dense and not self.exchange.sums_first:
            ticket.waiting = pipeline.wait(state, gradient, world_size, parts)
        elif state.is_on_device and not dense and self.exchange.selects_everywhere:
            ticket.begun = pipeline.begin(state, gradient, world_size, parts)
            ticket.bucket.begun.append(ticket)
        else:
            ticket.outgoing = pipeline.send(
                state, gradient, rank, world_size, dense=dense, parts=parts
            )

    def poison(
        self, error: Exception, key: str, dtype: np.dtype | type, rank: int, world_size: int
    ) -> tuple[np.ndarray, Ticket]:
        """Return a carrier that reports a failure of a gradient that belongs to no registered
        tensor."""
        layout = self.layout(dtype, world_size, alone=True)
        # It enters the step without a position: the step must not count it as one of its tensors.
        run = self.transactions.open_run(None)
        ticket = Ticket(run, key, layout)
        ticket.error = error
        run.errors.append(in_words(error))
        carrier = layout.write(rank, 0, failed=True)
        self.stats.count_bytes("carrier", carrier.nbytes)
        return carrier, ticket

    def layout(self, dtype: np.dtype | type, world_size: int, *, alone: bool) -> CarrierLayout:
        """Return how a carrier lies in memory, travelling alone or before a dense gradient of the
        dtype."""
        chosen = (self.carrier_dtype if alone else None) or dtype
        return carrier_layout(chosen, world_size, self.has_replica)

    def _write_wire(self, ticket: TensorStep, rank: int, dense: bool) -> np.ndarray:
        sent, waiting, state = ticket.outgoing, ticket.waiting, ticket.state
        spec = state.spec
        # What all ranks must agree on about this tensor's step, the loss scale included.  Of most
        # of it the checksum is the same at every step.
        started = self._started_checksums.get(spec.key)
        if started is None:
            started = crc32(f"{self.configuration.digest}|{spec.key}|".encode())
            self._started_checksums[spec.key] = started
        moment = f"{state.steps}|{dense}|{ticket.scale}"
        if state.pace is not None:
            moment += f"|{state.pace.rate!r}|{state.pace.reference!r}"
        if self.configuration.memory.finishes:
            moment += f"|{state.memory.settings}"
        ticket.checksum = crc32(moment.encode(), started) & CHECKSUM_MASK
        carrier = ticket.layout.write(
            rank,
            ticket.checksum,
            failed=ticket.error is not None,
            replica=self.applied.get(spec.key, 0),
            is_finite=ticket.is_finite,
            density=0.0 if sent is None else sent.entries / spec.numel,
            norm=sent.norm if sent else waiting.norm if waiting else 0.0,
        )
        self.stats.count_bytes("carrier", carrier.nbytes)
        if not dense:
            return carrier
        everything = None if sent is None else sent.dense
        # A failed rank still takes part in the sum, because all ranks expect its length.
        if everything is None:
            everything = np.zeros(spec.numel, carrier.dtype)
        self.stats.count_bytes("dense", everything.nbytes)
        return np.concatenate([carrier, everything.astype(carrier.dtype, copy=False)])

    def converse(self, bucket: BucketRun, run: StepRun, rank: int, world_size: int) -> Conversation:
        """Return the bucket's exchange; it runs every phase, even after a failure on this rank."""
        if bucket.begun:
            self.go_on_with(bucket, rank, world_size)
        if self.configuration.select_over == "group":  # else the exchange selects what waits
            self._select_merged(bucket, run, rank, world_size)

        def select(position: int, gradient: np.ndarray) -> np.ndarray:
            """Walk the first half with what the exchange has summed up.

            A step that was taken back meanwhile must not write over what the next has begun.
            """
            if run.failure is not None:
                raise run.failure
            ticket = bucket.sending[position]
            sent = ticket.outgoing = self.pipeline.send(
                ticket.state, gradient, rank, world_size, dense=False, is_summed=True
            )
            assert sent.frame is not None
            return sent.frame

        members = {}
        for position in sorted(bucket.sending):
            members[position] = _member(bucket.sending[position])
        context = ExchangeContext(
            rank=rank,
            world_size=world_size,
            step=self.transactions.steps_of(bucket.entered),
            configuration=self.configuration.checksum,
            bucket=bucket.index,
            members=members,
            keys=self.keys,
            errors=told_once(bucket.errors + run.errors),
            kernels=self.pipeline.kernels,
            select=select,
            selector=self.configuration.selector,
            placement=self.placement,
        )
        return self._counted(self.pipeline.exchange.run(context))

    def _select_merged(self, bucket: BucketRun, run: StepRun, rank: int, world_size: int) -> None:
        """Select from the accumulated vectors of a group.

        The carriers were sent earlier, so only the message can report a failure.
        """
        members = [
            (ticket, ticket.state, ticket.waiting)
            for _, ticket in sorted(bucket.sending.items())
            if ticket.waiting is not None
        ]
        if not members:
            return
        try:
            if run.failure is not None:  # taken back meanwhile: the states are another step's
                raise run.failure
            sent = send_merged(self.pipeline, [each[1:] for each in members], rank, world_size)
            for (ticket, _, _), outgoing in zip(members, sent):
                ticket.outgoing, ticket.waiting = outgoing, None
        except Exception as error:
            keys = ", ".join(repr(ticket.key) for ticket, _, _ in members)
            bucket.errors.append(f"selecting from {keys} as one: {in_words(error)}")

    def _counted(self, conversation: Conversation) -> Conversation:
        """Return the same exchange, with its bytes counted."""
        # A generator around the exchange's own, so that exchanges need not count.
        request = next(conversation)
        while True:
            self.stats.count_bytes("payload", request.array.nbytes)
            received = yield request
            with self.transactions.lock:
                self.stats.received_bytes += received.nbytes
            try:
                request = conversation.send(received)
            except StopIteration as stop:
                arrivals: dict[int, Arrival] = stop.value
                return arrivals


def _member(ticket: TensorStep) -> Member:
    """Return a tensor as exchanges see it."""
    state, parts = ticket.state, ticket.parts
    return Member(
        position=ticket.position,
        spec=state.spec,
        part=state.part,
        steps=state.steps,
        selector=parts.selector,
        codec=parts.codec,
        density=parts.density,
        outgoing=ticket.outgoing or Outgoing(),  # the message tells why there is nothing
        memo=state.exchange_memo,
    )
