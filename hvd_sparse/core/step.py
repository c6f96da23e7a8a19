"""The step object: which tensors are in a step, what each bucket sends, and what becomes of it.

It holds all state of a compressor, and no collective: ``core.driver`` and the TensorFlow frontend move bytes.

A local failure never raises in ``compress``, where the other ranks would wait for what this one did not submit.
It is written down: into the carrier's flag, and in words into the bucket's message.  All ranks then raise alike.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import NonFiniteGradient, PeerFailure, RankMismatch
from ..types import TensorSpec
from .aligned import aligned_empty
from .buckets import check_merged
from .carrier import CHECKSUM_BITS, CarrierLayout, carrier_layout
from .checksum import crc32
from .configuration import Configuration
from .exchanges._base import Conversation, Exchange
from .kernels import Kernels
from .merging import send_merged
from .parcel import Arrival, Item, Parcel
from .pipeline import Pipeline
from .placement import Placement
from .runs import BucketRun, StepRun, Ticket
from .scaling import check_scale, rescaled, stays_finite, unscaled
from .spans import Spans
from .staging import Staging
from .state import TensorState
from .stats import Stats

logger = logging.getLogger("hvd_sparse")


class Step:
    """All tensors of a compressor and the step that they are in.

    Parameters
    ----------
    configuration : parts and options
    specs : the registered tensors, in the same order on every rank
    buckets : members of every bucket, by position
    kernels : the engine's kernels
    carrier_dtype : of carriers that travel alone; None takes the accumulator's, as dense steps do
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        buckets: Sequence[tuple[int, ...]],
        kernels: Kernels | ModuleType,
        carrier_dtype: Any = None,
    ) -> None:
        self.configuration = configuration
        self.specs = list(specs)
        self._set_buckets(buckets)
        self.pipeline = Pipeline(configuration, kernels)
        self.carrier_dtype = carrier_dtype
        self.stats = Stats()
        self.reduction = "average"
        self._replicas: dict[str, int] = {}
        self.staging = Staging(configuration, self.specs)
        self.placement: Placement | None = None
        self.sends_everything = False
        """Steps run dense, residual included, whatever the configuration says; the same on all ranks."""

    def regroup(self, buckets: Sequence[tuple[int, ...]]) -> None:
        """Other tensors travel together from the next step on; the same on all ranks, and between steps.

        States belong to tensors, so nothing that is kept back is lost.  InvalidOption in the middle of a step, and for
        groups that cannot be selected from as one where that is asked for.
        """
        self.staging.close()
        self._set_buckets(buckets)

    def regroup_at_start(self, buckets: Sequence[tuple[int, ...]]) -> None:
        """As ``regroup``, where a step is known to begin: what has not come back of the last was given up, or soon will."""
        self.staging.leave()
        self._set_buckets(buckets)

    def _set_buckets(self, buckets: Sequence[tuple[int, ...]]) -> None:
        check_merged(self.specs, buckets, self.configuration)
        self.buckets = list(buckets)
        self._bucket_of = {position: i for i, members in enumerate(buckets) for position in members}

    @property
    def exchange(self) -> Exchange:
        """The one that runs."""
        exchange: Exchange = self.pipeline.exchange
        return exchange

    @property
    def spans(self) -> Spans:
        """Tells when parts of the work begin and end."""
        return self.pipeline.spans

    def place(self, rank: int, world_size: int, nodes: tuple[int, ...] | None) -> None:
        """Before the first step: where the ranks are, for exchanges to which it matters.

        nodes : the node of every rank, None where that is not known
        """
        placement = self.configuration.exchange.placement(rank, world_size, nodes)
        if placement is None:
            return
        members = [position for bucket in self.buckets for position in bucket]
        numel = sum(self.specs[position].numel for position in members)
        self.pipeline.exchange = self.configuration.exchange.resolve(
            self.configuration, placement, numel, len(self.buckets)
        )
        self.placement = placement
        if not self.exchange.sums_first:
            return
        self.staging.placement = placement
        if placement.node_count == 1 and self.configuration.allow_dense:
            logger.warning(
                "all %d ranks are on one node, where exchange %s is a dense sum: every step runs dense",
                world_size,
                self.exchange.id,  # type: ignore[attr-defined]
            )

    # -- this rank's half -------------------------------------------------------------------------------------------

    def compress(
        self, position: int, gradient: np.ndarray, rank: int, world_size: int, scale: float = 1.0
    ) -> tuple[np.ndarray, Ticket]:
        """Take a gradient in; return the flat array that Horovod is to reduce, and the ticket.

        gradient : flat, C-contiguous, of the accumulator's dtype
        scale : by which the loss, and so the gradient, was multiplied; the same on all ranks

        The array is the carrier, followed by all that was accumulated where this step of the tensor runs dense.
        """
        spec = self.specs[position]
        ticket, state = self._enter(position)
        dense = self.sends_everything or self.configuration.goes_dense(
            spec, state.steps, world_size, self.exchange, self.placement
        )
        ticket.layout = self.layout(spec.accumulator, world_size, alone=not dense)
        ticket.scale = scale
        try:
            check_scale(scale)
            ticket.outgoing = self.pipeline.send(
                state, unscaled(gradient, scale), rank, world_size, dense=dense, waits=self._waits(ticket.bucket)
            )
        except NonFiniteGradient as error:
            ticket.is_finite = False
            if (
                self.configuration.on_nonfinite == "raise" or np.isfinite(gradient).all()
            ):  # else residual + gradient overflows
                self._note_failure(ticket, error)
            else:
                ticket.outgoing = self.pipeline.send_nothing(state, dense=dense)
        except Exception as error:
            self._note_failure(ticket, error)
        if ticket.outgoing is not None and ticket.outgoing.dense is None and ticket.bucket is not None:
            ticket.bucket.sending[position] = ticket
        return self._write_wire(ticket, spec, state, rank, dense), ticket

    def _waits(self, bucket: BucketRun | None) -> bool:
        """Whether nothing is selected before a bucket's last gradient has come."""
        return self.configuration.select_over == "group" and bucket is not None and len(bucket.members) > 1

    def poison(self, error: Exception, key: str, dtype: Any, rank: int, world_size: int) -> tuple[np.ndarray, Ticket]:
        """A carrier that tells the other ranks of a failure that no registered tensor stands for."""
        layout = self.layout(dtype, world_size, alone=True)
        run = self.staging.open_run(None)
        ticket = Ticket(run, key, layout, error=error)
        run.errors.append(_words(error))
        carrier = layout.write(rank, 0, failed=True)
        self.stats.count_bytes("carrier", carrier.nbytes)
        return carrier, ticket

    def layout(self, dtype: Any, world_size: int, *, alone: bool) -> CarrierLayout:
        """How a carrier lies in memory, travelling alone or before a dense gradient of the dtype."""
        chosen = self.carrier_dtype if alone and self.carrier_dtype is not None else dtype
        return carrier_layout(chosen, world_size, self.configuration.check_replicas_every > 0)

    def _enter(self, position: int) -> tuple[Ticket, TensorState]:
        with self.staging.lock:
            run = self.staging.open_run(position)
            state = self.staging.enter(position, run)
            index = self._bucket_of[position]
            if index not in run.buckets:
                run.buckets[index] = BucketRun(index, self.buckets[index])
            bucket = run.buckets[index]
            bucket.entered.add(position)
            return Ticket(run, self.specs[position].key, position=position, bucket=bucket), state

    def _note_failure(self, ticket: Ticket, error: Exception) -> None:
        ticket.error = error
        if ticket.bucket is not None:
            ticket.bucket.errors.append(_words(error))

    def _write_wire(self, ticket: Ticket, spec: TensorSpec, state: TensorState, rank: int, dense: bool) -> np.ndarray:
        sent = ticket.outgoing
        identity = f"{self.configuration.digest}|{spec.key}|{state.steps}|{dense}|{ticket.scale}"
        checksum = crc32(identity.encode()) & ((1 << CHECKSUM_BITS) - 1)
        density = sent.entries / spec.numel if sent is not None else 0.0
        norm = sent.norm if sent is not None else 0.0
        carrier = ticket.layout.write(
            rank,
            checksum,
            failed=sent is None,
            replica=self._replicas.get(spec.key, 0),
            is_finite=ticket.is_finite,
            density=density,
            norm=norm,
        )
        self.stats.count_bytes("carrier", carrier.nbytes)
        if not dense:
            return carrier
        everything = sent.dense if sent is not None and sent.dense is not None else np.zeros(spec.numel, carrier.dtype)
        self.stats.count_bytes("dense", everything.nbytes)
        return np.concatenate([carrier, everything.astype(carrier.dtype, copy=False)])

    def converse(self, bucket: BucketRun, run: StepRun, rank: int, world_size: int) -> Conversation:
        """The bucket's exchange.  Takes part in every phase, whatever happened on this rank."""
        self._select_merged(bucket, run, rank, world_size)
        parcel = Parcel(
            rank=rank,
            world_size=world_size,
            step=max((self.staging.steps_of(position) for position in bucket.entered), default=0),
            configuration=self.configuration.checksum,
            bucket=bucket.index,
            items={position: self._item(bucket.sending[position]) for position in sorted(bucket.sending)},
            pipeline=self.pipeline,
            run=run,
            keys=[spec.key for spec in self.specs],
            errors=bucket.errors + run.errors,
            placement=self.placement,
        )
        return self._counted(self.exchange.run(parcel))

    def _select_merged(self, bucket: BucketRun, run: StepRun, rank: int, world_size: int) -> None:
        """Select from what waits for its group.  The carriers are gone: a failure travels in the message alone."""
        if not self._waits(bucket):
            return
        waiting = {position: bucket.sending[position] for position in sorted(bucket.sending)}
        waiting = {position: ticket for position, ticket in waiting.items() if ticket.is_waiting}
        try:
            if run.failure is not None:  # taken back meanwhile: the states are another step's
                raise run.failure
            members = [(self.staging.staged(position), ticket.sent) for position, ticket in waiting.items()]
            for ticket, outgoing in zip(waiting.values(), send_merged(self.pipeline, members, rank, world_size)):
                ticket.outgoing = outgoing
        except Exception as error:
            keys = ", ".join(repr(ticket.key) for ticket in waiting.values())
            bucket.errors.append(f"selecting from {keys} as one: {_words(error)}")

    def _item(self, ticket: Ticket) -> Item:
        assert ticket.position is not None
        state = self.staging.staged(ticket.position)
        density = self.configuration.density(state.steps)
        return Item(
            self.specs[ticket.position],
            state,
            ticket,
            self.pipeline.selector(state.steps),
            density,
            self.pipeline.codec(state.steps),
        )

    def _counted(self, conversation: Conversation) -> Conversation:
        """The same, with its bytes counted."""
        request = next(conversation)
        while True:
            self.stats.count_bytes("payload", request.array.nbytes)
            received = yield request
            try:
                request = conversation.send(received)
            except StopIteration as stop:
                arrivals: dict[int, Arrival] = stop.value
                return arrivals

    # -- what all ranks sent ----------------------------------------------------------------------------------------

    def receive(self, bucket: BucketRun, arrivals: dict[int, Arrival]) -> None:
        """Accept what an exchange brought for a bucket, and keep back what did not leave this rank."""
        bucket.arrivals = arrivals
        if not self.exchange.settles_later:
            return
        with self.staging.lock:
            for position, arrival in arrivals.items():
                ticket = bucket.sending[position]
                if ticket.is_finite and self.staging.is_current(position, ticket.run):  # else there is nothing to keep
                    state = self.staging.staged(position)
                    self.pipeline.settle(state, arrival.left, arrival.returned, arrival.memo)

    def result(
        self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray, out: np.ndarray | None = None
    ) -> np.ndarray:
        """The reduced gradient of a tensor: flat, of the accumulator's dtype.

        reduced : what Horovod made of the array that ``compress`` gave it
        parameter : the tensor's value, flat, for memories that finish with it
        out : where the result may go; a sparse step's is written there, and nothing is where the step fails
        """
        report = ticket.report(reduced)
        if ticket.error is not None:
            raise PeerFailure(f"compressing failed on this rank: {_words(ticket.error)}") from ticket.error
        if report.failures:
            raise PeerFailure(
                f"tensor {ticket.key!r}: compressing failed on {report.failures} ranks; their own output says why"
            )
        assert ticket.position is not None and ticket.bucket is not None and ticket.outgoing is not None
        if ticket.layout.world_size > 1:  # one rank's sum is its average
            is_average = abs(report.factor * ticket.layout.world_size - 1) < 1e-3
            self.reduction = "average" if is_average else "sum"
        if not self.staging.is_current(ticket.position, ticket.run):
            if ticket.run.failure is not None:  # another tensor's thread has just taken the step back
                raise ticket.run.failure
            raise RankMismatch(
                f"tensor {ticket.key!r} was compressed again before its last step was decompressed: "
                "give every tape or optimizer that reduces it a compressor of its own"
            )
        spec = self.specs[ticket.position]
        if ticket.outgoing.dense is not None:
            result = reduced[ticket.layout.size :].astype(spec.accumulator, copy=False)
        else:
            result = aligned_empty(spec.numel, spec.accumulator) if out is None else out
            parts, steps = ticket.bucket.arrivals[ticket.position].parts, self.staging.steps_of(ticket.position)
            self.pipeline.receive(spec, parts, report.factor, result, steps)
        with self.staging.lock:
            if ticket.run.failure is not None:  # another tensor's thread has taken the step back meanwhile
                raise ticket.run.failure
            self._count(ticket, spec)
            return self._finish(ticket, result, parameter, is_finite=not report.non_finite)

    def enter_dense(self, position: int, scale: float = 1.0) -> Ticket:
        """A tensor that is never compressed begins a step: what its memory makes of it goes back with the others'."""
        with self.staging.lock:
            run = self.staging.open_run(position)
            if self.configuration.memory.finishes:
                self.staging.enter(position, run)
            else:
                run.entered.add(position)
        return Ticket(run, self.specs[position].key, position=position, scale=scale)

    def finish_dense(self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        """What the optimizer is given for a tensor that Horovod reduced by itself.

        It has no carrier: NaN or Inf are seen in the result, which is the same on all ranks.
        """
        is_finite = bool(np.isfinite(reduced).all())
        if not is_finite and self.configuration.on_nonfinite == "raise":
            error = NonFiniteGradient(
                f"tensor {ticket.key!r}, which travels dense: {np.count_nonzero(~np.isfinite(reduced))} of {reduced.size} "
                "entries of the reduced gradient are NaN or Inf, on some rank; look for the step's loss, lower the "
                "learning rate, or clip gradients before they are compressed"
            )
            self.fail(ticket.run, error)
            raise error
        if is_finite and self.configuration.memory.finishes:
            reduced = unscaled(reduced, ticket.scale)
        elif is_finite:
            return reduced
        return self._finish(ticket, reduced, parameter, is_finite=is_finite)

    def _finish(self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray, *, is_finite: bool) -> np.ndarray:
        """The last touch, in the units of the scaled loss.  A step that is not finite everywhere leaves no trace."""
        assert ticket.position is not None
        spec = self.specs[ticket.position]
        if is_finite and self.configuration.memory.finishes:
            state = self.staging.staged(ticket.position)
            is_compressed = ticket.bucket is not None
            reduced = state.memory.finish(reduced, parameter, is_compressed, self.pipeline.kernels)
        reduced = rescaled(reduced, ticket.scale)
        ticket.run.completed.add(ticket.position)
        if is_finite and stays_finite(reduced, spec.dtype, ticket.scale):
            self._note_replica(ticket, reduced)
            return reduced
        self._take_back(ticket.run)
        return np.full(spec.numel, np.nan, spec.accumulator)

    def forget_replicas(self) -> None:
        """Compare nothing of the past: this rank goes on from another state."""
        self._replicas.clear()

    def _note_replica(self, ticket: Ticket, applied: np.ndarray) -> None:
        """A checksum for the tensor's next carrier, where it is due."""
        every = self.configuration.check_replicas_every
        if every and ticket.bucket is not None and ticket.position is not None:
            is_due = (self.staging.steps_of(ticket.position) + 1) % every == 0
            self._replicas[ticket.key] = crc32(applied.tobytes()) & ((1 << CHECKSUM_BITS) - 1) if is_due else 0

    def _take_back(self, run: StepRun) -> None:
        """NaN or Inf somewhere in a step: all of its tensors go back to what they were, when their next step begins."""
        with self.staging.lock:
            if run.is_finite:
                run.is_finite = False
                self.stats.nonfinite_steps += 1
            self._uncount(run)

    def _count(self, ticket: Ticket, spec: TensorSpec) -> None:
        sent = ticket.outgoing
        assert sent is not None
        counts = {"dense_steps": 1}
        if sent.dense is None:
            kept = self.staging.staged(ticket.position or 0).part
            counts = {"sparse_steps": 1, "entries_sent": sent.entries, "entries_total": kept.stop - kept.start}
        if sent.found is not None:
            counts |= {"passes": sent.found.passes, "one_pass": int(sent.found.is_one_pass)}
            counts |= {"fallbacks": int(sent.found.is_fallback)}
        self.stats.count_tensor(spec.key, **counts)
        ticket.run.counted.append((spec.key, counts))
        if not ticket.run.is_finite:
            self._uncount(ticket.run)

    def fail(self, run: StepRun, failure: Exception) -> None:
        """Take a step back, all of its tensors and what was counted of them."""
        self.staging.fail(run, failure)
        with self.staging.lock:
            self._uncount(run)

    def _uncount(self, run: StepRun) -> None:
        for key, counts in run.counted:
            self.stats.count_tensor(key, **{name: -count for name, count in counts.items()})
        run.counted.clear()


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
