"""This rank's half of a step: what it takes in of every tensor, and what each bucket says to the
other ranks.

A local failure never raises in ``compress``, where the other ranks would wait for what this one did
not submit. It is written down: into the carrier's flag, and in words into the bucket's message.
All ranks then raise alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hvd_sparse.core.step.group_selection import send_merged
from hvd_sparse.core.step.loss_scale import check_scale, unscaled
from hvd_sparse.core.step.records import BucketRun, StepRun, Ticket, in_words
from hvd_sparse.core.step.tensor_state import TensorState
from hvd_sparse.core.wire.carrier import CarrierLayout, carrier_layout
from hvd_sparse.core.wire.replicas import short_checksum
from hvd_sparse.errors import NonFiniteGradient
from hvd_sparse.exchanges.context import Arrival, Item, Parcel
from hvd_sparse.exchanges.contract import Conversation
from hvd_sparse.types import TensorSpec

if TYPE_CHECKING:
    from hvd_sparse.core.step.step import Step


class Sending:
    """Of the step object ``step``, whose state it changes."""

    def __init__(self, step: Step) -> None:
        self._step = step

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
    ) -> tuple[np.ndarray, Ticket]:
        """Take a gradient in; return the flat array that Horovod is to reduce, and the ticket.

        gradient : flat, C-contiguous, of the accumulator's dtype
        scale : by which the loss, and so the gradient, was multiplied; the same on all ranks
        is_joined : buckets of other tensors may be joined with this one's before its message is
            made
        everything : run dense, residual included, whatever the configuration says; the same on all
            ranks

        The array is the carrier, followed by all that was accumulated where this step of the tensor
        runs dense.
        """
        spec = self._step.specs[position]
        ticket, state = self._enter(position)
        dense = everything or self._step.configuration.goes_dense(
            spec, state.steps, world_size, self._step.exchange, self._step.placement
        )
        ticket.layout = self.layout(spec.accumulator, world_size, alone=not dense)
        ticket.scale = scale
        is_joined = is_joined or (ticket.bucket is not None and len(ticket.bucket.members) > 1)
        waits = is_joined and self._step.configuration.select_over == "group"
        try:
            check_scale(scale)
            self._step.prepare(position, state)
            ticket.outgoing = self._step.pipeline.send(
                state, unscaled(gradient, scale), rank, world_size, dense=dense, waits=waits
            )
        except NonFiniteGradient as error:
            ticket.is_finite = False
            if (
                self._step.configuration.on_nonfinite == "raise" or np.isfinite(gradient).all()
            ):  # else residual + gradient overflows
                self._note_failure(ticket, error)
            else:
                ticket.outgoing = self._step.pipeline.send_nothing(state, dense=dense)
        except Exception as error:
            self._note_failure(ticket, error)
        if (
            ticket.outgoing is not None
            and ticket.outgoing.dense is None
            and ticket.bucket is not None
        ):
            ticket.bucket.sending[position] = ticket
        return self._write_wire(ticket, spec, state, rank, dense), ticket

    def poison(
        self, error: Exception, key: str, dtype: Any, rank: int, world_size: int
    ) -> tuple[np.ndarray, Ticket]:
        """A carrier that tells the other ranks of a failure that no registered tensor stands
        for."""
        layout = self.layout(dtype, world_size, alone=True)
        run = self._step.staging.open_run(None)
        ticket = Ticket(run, key, layout, error=error)
        run.errors.append(in_words(error))
        carrier = layout.write(rank, 0, failed=True)
        self._step.stats.count_bytes("carrier", carrier.nbytes)
        return carrier, ticket

    def layout(self, dtype: Any, world_size: int, *, alone: bool) -> CarrierLayout:
        """How a carrier lies in memory, travelling alone or before a dense gradient of the
        dtype."""
        chosen = (
            self._step.carrier_dtype if alone and self._step.carrier_dtype is not None else dtype
        )
        return carrier_layout(chosen, world_size, self._step.configuration.check_replicas_every > 0)

    def _enter(self, position: int) -> tuple[Ticket, TensorState]:
        with self._step.staging.lock:
            run = self._step.staging.open_run(position)
            state = self._step.staging.enter(position, run)
            index = self._step.bucket_of[position]
            if index not in run.buckets:
                run.buckets[index] = BucketRun(index, self._step.buckets[index])
            bucket = run.buckets[index]
            bucket.entered.add(position)
            return Ticket(
                run, self._step.specs[position].key, position=position, bucket=bucket
            ), state

    def _note_failure(self, ticket: Ticket, error: Exception) -> None:
        ticket.error = error
        if ticket.bucket is not None:
            ticket.bucket.errors.append(in_words(error))

    def _write_wire(
        self, ticket: Ticket, spec: TensorSpec, state: TensorState, rank: int, dense: bool
    ) -> np.ndarray:
        sent = ticket.outgoing
        identity = (
            f"{self._step.configuration.digest}|{spec.key}|{state.steps}|{dense}|{ticket.scale}"
        )
        checksum = short_checksum(identity.encode())
        density = sent.entries / spec.numel if sent is not None else 0.0
        norm = sent.norm if sent is not None else 0.0
        carrier = ticket.layout.write(
            rank,
            checksum,
            failed=sent is None,
            replica=self._step.replicas.due(spec.key),
            is_finite=ticket.is_finite,
            density=density,
            norm=norm,
        )
        self._step.stats.count_bytes("carrier", carrier.nbytes)
        if not dense:
            return carrier
        everything = (
            sent.dense
            if sent is not None and sent.dense is not None
            else np.zeros(spec.numel, carrier.dtype)
        )
        self._step.stats.count_bytes("dense", everything.nbytes)
        return np.concatenate([carrier, everything.astype(carrier.dtype, copy=False)])

    def converse(self, bucket: BucketRun, run: StepRun, rank: int, world_size: int) -> Conversation:
        """The bucket's exchange.  Takes part in every phase, whatever happened on this rank."""
        self._select_merged(bucket, run, rank, world_size)
        parcel = Parcel(
            rank=rank,
            world_size=world_size,
            step=max(
                (self._step.staging.steps_of(position) for position in bucket.entered), default=0
            ),
            configuration=self._step.configuration.checksum,
            bucket=bucket.index,
            items={
                position: self._item(bucket.sending[position])
                for position in sorted(bucket.sending)
            },
            pipeline=self._step.pipeline,
            run=run,
            keys=[spec.key for spec in self._step.specs],
            errors=bucket.errors + run.errors,
            placement=self._step.placement,
        )
        return self._counted(self._step.exchange.run(parcel))

    def _select_merged(self, bucket: BucketRun, run: StepRun, rank: int, world_size: int) -> None:
        """Select from what waits for its group.  The carriers are gone: a failure travels in the
        message alone."""
        waiting = {
            position: ticket
            for position, ticket in sorted(bucket.sending.items())
            if ticket.is_waiting
        }
        if (
            not waiting or self._step.configuration.select_over != "group"
        ):  # else the exchange selects
            return
        try:
            if run.failure is not None:  # taken back meanwhile: the states are another step's
                raise run.failure
            members = [
                (self._step.staging.staged(position), ticket.sent)
                for position, ticket in waiting.items()
            ]
            for ticket, outgoing in zip(
                waiting.values(), send_merged(self._step.pipeline, members, rank, world_size)
            ):
                ticket.outgoing = outgoing
        except Exception as error:
            keys = ", ".join(repr(ticket.key) for ticket in waiting.values())
            bucket.errors.append(f"selecting from {keys} as one: {in_words(error)}")

    def _item(self, ticket: Ticket) -> Item:
        assert ticket.position is not None
        state = self._step.staging.staged(ticket.position)
        density = self._step.configuration.density(state.steps)
        return Item(
            self._step.specs[ticket.position],
            state,
            ticket,
            self._step.pipeline.selector(state.steps),
            density,
            self._step.pipeline.codec(state.steps),
        )

    def _counted(self, conversation: Conversation) -> Conversation:
        """The same, with its bytes counted."""
        request = next(conversation)
        while True:
            self._step.stats.count_bytes("payload", request.array.nbytes)
            received = yield request
            try:
                request = conversation.send(received)
            except StopIteration as stop:
                arrivals: dict[int, Arrival] = stop.value
                return arrivals
