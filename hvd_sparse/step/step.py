"""The step: the tensors and buckets of a compressor, and the half of a step that sends.

``step.receiver`` has the half that receives. Neither half calls a collective; ``step.driver`` and
the TensorFlow frontend do. The carrier is the small array that Horovod reduces in place of a
gradient. If this rank fails, ``compress`` does not raise an error, because other ranks would wait
forever. The carrier's flag and the bucket's message report the failure, and all ranks raise an
error.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import numpy as np

from hvd_sparse.collectives.contract import Collective, Placement, Request
from hvd_sparse.configuration import Configuration, StepParts
from hvd_sparse.errors import InvalidOption, NonFiniteGradient, SparseError
from hvd_sparse.exchanges.context import Arrival, ExchangeContext, Member, Outgoing
from hvd_sparse.exchanges.contract import Conversation, Exchange
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.step.buckets import check_merged
from hvd_sparse.step.group_selection import send_merged
from hvd_sparse.step.receiver import Receiver
from hvd_sparse.step.records import (
    BucketRun,
    Late,
    StepRun,
    TensorStep,
    Ticket,
    distinct,
    in_words,
    unscaled,
)
from hvd_sparse.step.rows import OutgoingRows
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.tracing import Spans
from hvd_sparse.types import Pace, Settings, TensorSpec, Value
from hvd_sparse.wire.carrier import CHECKSUM_MASK, carrier_layout
from hvd_sparse.wire.frame import crc32
from hvd_sparse.wire.padding import Padding

logger = logging.getLogger("hvd_sparse")

MOST_ANSWERS = 1 << 14
"""Largest number of cached answers to the question whether a tensor runs dense at a density."""


class Step(Receiver):
    """All tensors of a compressor, numbered in the same order on all ranks, and their current step.

    rank, world_size : this process's rank and the number of ranks as of the last handshake; -1 and
        0 before it
    compressed : positions of the tensors that may be compressed; the others never are
    applied : checksum of the last reduced gradient of each tensor, to compare the ranks' replicas
    padding : pads the messages of exchanges; None if they are not padded
    counts_together : whether the largest size of a collective, ``MOST_BYTES``, bounds the bytes of
        all ranks together
    settings_of, pace_of : functions of a tensor's position that return the optimizer's settings and
        the learning rate; None if the frontend has none
    references : for each parameter group of the optimizer, the learning rate with which later rates
        are compared; empty if densities do not follow the learning rate
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        buckets: Sequence[tuple[int, ...]],
        kernels: Kernels,
        carrier_dtype: type[np.floating] | None = None,
    ) -> None:
        super().__init__(configuration, specs, kernels)
        self.keys = [spec.key for spec in self.specs]
        self._set_buckets(buckets)
        self.spans: Spans = self.pipeline.spans
        self.carrier_dtype = None if carrier_dtype is None else np.dtype(carrier_dtype)
        self.stats = self.transactions.stats
        self.rank, self.world_size = -1, 0
        self.padding: Padding | None = None
        self.placement: Placement | None = None
        self.counts_together = True
        self.settings_of: Callable[[int], Settings] | None = None
        self.pace_of: Callable[[int], Pace] | None = None
        self.references: list[float] = []
        self._is_dense: dict[tuple[int, str, float | None], bool] = {}
        # The constant part of the checksum in carriers, which covers all that ranks have in common.
        digest = configuration.digest
        self._started = [crc32(f"{digest}|{key}|".encode()) for key in self.keys]

    @property
    def exchange(self) -> Exchange:
        return self.pipeline.exchange

    # -- between steps: buckets, densities and nodes -----------------------------------------------

    def regroup(self, buckets: Sequence[tuple[int, ...]], *, is_over: bool = False) -> None:
        """Use other buckets from the next step on. All ranks must pass the same buckets. Raises
        InvalidOption if a tensor of the current step has no result yet, unless ``is_over`` states
        that no caller waits for a result. Raises it also if ``select_over`` is "group", and the
        vectors of a group have different dtypes or too many entries to be joined."""
        self.transactions.close(is_over=is_over)
        self._set_buckets(buckets)

    def _set_buckets(self, buckets: Sequence[tuple[int, ...]]) -> None:
        check_merged(self.specs, buckets, self.configuration)
        self.buckets = list(buckets)
        self.bucket_of = {position: i for i, members in enumerate(buckets) for position in members}

    def put_bucket(self, index: int, members: tuple[int, ...]) -> None:
        """Replace the bucket number ``index`` by a bucket of the tensors ``members``, or append
        this bucket. Called before these tensors enter a step. All ranks must do this alike."""
        check_merged(self.specs, [members], self.configuration)
        self.buckets[index : index + 1] = [members]
        self.bucket_of |= dict.fromkeys(members, index)

    def reconfigure(self, configuration: Configuration) -> None:
        self.configuration = self.pipeline.configuration = configuration

    def meet(self, rank: int, world_size: int) -> None:
        """Set the rank and the number of ranks, as a handshake or a loaded state gives them."""
        self.rank, self.world_size = rank, world_size
        self.pipeline.rank, self.pipeline.world_size = rank, world_size
        self._is_dense.clear()

    def place(self, collective: Collective) -> None:
        """Ask which node each rank is on, if the exchange needs this, and choose the exchange if it
        is "auto". Called before the first step, and after the ranks have changed. May be
        collective."""
        exchange = self.configuration.exchange
        # Outside of the process set, the rank is -1.
        if not exchange.needs_nodes or collective.rank < 0:
            return
        placement = exchange.placement(collective.rank, collective.world_size, collective.nodes)
        specs = [self.specs[position] for bucket in self.buckets for position in bucket]
        exchange = self.configuration.resolve_exchange(placement, specs, len(self.buckets))
        self.pipeline.use(exchange)
        self.placement = placement
        # The density from which dense is cheaper depends on the exchange.
        self._is_dense.clear()
        if not exchange.sums_first:
            return
        self.transactions.placement = placement
        if placement.node_count == 1 and self.configuration.allow_dense:
            logger.warning(
                "all %d ranks are on one node, where exchange %s is a dense sum: every step runs "
                "dense",
                placement.world_size,
                exchange.id,
            )

    # -- a tensor begins its step -----------------------------------------------------------------

    def enter_dense(self, position: int, scale: float = 1.0, nbytes: int = 0) -> Ticket:
        """Begin the step of a tensor that Horovod reduces uncompressed, and return a ticket, the
        record of its gradient. A memory that ``finishes`` all reduced gradients also processes this
        one. But if the program passed its optimizer to the compressor, the optimizer itself updates
        this tensor. ``nbytes`` is the number of bytes to count as sent."""
        transactions, state = self.transactions, None
        with transactions.lock:
            self.stats.bytes["dense"] += nbytes
            if self.finishes and self.settings_of is None:
                run, state = transactions.enter(position)
                self._prepare(position, state, 1.0)
            else:
                run = transactions.open_run(position)
                run.entered.add(position)
        ticket = Ticket(run, self.keys[position], scale=scale)
        ticket.position, ticket.state, ticket.has_carrier = position, state, False
        return ticket

    def compress(
        self,
        position: int,
        gradient: np.ndarray,
        scale: float = 1.0,
        *,
        is_joined: bool = False,
        everything: bool = False,
        late: Late | None = None,
    ) -> tuple[np.ndarray, TensorStep]:
        """Compress a gradient. Return the flat array for Horovod to reduce, and a ticket for
        ``result``. The array is the carrier; on a dense step, the accumulated vector follows it.

        gradient : flat, C-contiguous, of the accumulator's dtype. If the bucket has other tensors,
            it is read until the bucket's message is made; no code may write to it before
        scale : loss scale, by which the gradient is multiplied; the same on all ranks
        is_joined : the bucket may be merged with others before its message is made
        everything : send all entries of gradient + residual; the same on all ranks
        late : the gradient if it is still being copied from a device, else None
        """
        with self.transactions.lock:
            run, state = self.transactions.enter(position)
            index = self.bucket_of[position]
            bucket = run.buckets.get(index) or run.open(index, self.buckets[index])
            bucket.entered.add(position)
        # Determined once a step, because decoding must use the same parts.
        parts = self.configuration.fixed_parts or self._parts_of(position, state)
        spec = state.spec
        question = spec.numel, spec.dtype, parts.density
        dense = everything or self._is_dense.get(question)
        if dense is None:
            dense = self._is_dense[question] = self._goes_dense(state)
        # A dense step's carrier has the gradient's dtype, because both are in one array.
        accumulator = spec.accumulator
        dtype = accumulator if dense else self.carrier_dtype or accumulator
        layout = carrier_layout(dtype, self.world_size, self.has_replica)
        ticket = TensorStep(run, layout, position, bucket, state, parts, scale)
        is_alone = len(bucket.members) == 1 and not is_joined
        waits = not is_alone and self.configuration.select_over == "group"
        pipeline = self.pipeline
        # The passes of a bucket run one after the other when it is full, in one call if possible:
        # if other code ran between them, the calls would find cold caches.
        is_late = late is not None or not (is_alone or state.is_on_device)
        try:
            if scale != 1.0 and (not math.isfinite(scale) or scale <= 0):
                raise InvalidOption(
                    f"the loss scale is {scale!r}, but must be a number above 0: give the scaler "
                    "that scales the loss as grad_scaler="
                )
            self._prepare(position, state, 1.0 if dense else parts.density)
            may_be_late = pipeline.selects_late and not pipeline.observes
            if is_late and may_be_late and not dense and not waits:
                ticket.late = gradient if late is None else late
                bucket.begun.append(ticket)
            else:
                plain = gradient if late is None else late.array()
                plain = plain if scale == 1.0 else unscaled(plain, scale)
                if waits and not dense:
                    pipeline.accumulate_for_group(ticket, plain)
                elif state.is_on_device and not dense:
                    pipeline.begin(ticket, plain)
                    bucket.begun.append(ticket)
                else:
                    ticket.outgoing = pipeline.send(state, plain, dense=dense, parts=parts)
        # Nothing is raised here: the other ranks wait for this tensor's carrier.
        except NonFiniteGradient as error:
            self._note_nonfinite(ticket, error, dense=dense)
        except Exception as error:
            ticket.fail(error)
        if not dense and ticket.error is None:
            bucket.sending[position] = ticket
        return self._write_wire(ticket, dense), ticket

    def _parts_of(self, position: int, state: TensorState) -> StepParts:
        if self.pace_of is not None:
            state.pace = self.pace_of(position)
        return self.configuration.at_step(state.steps, state.spec, state.pace)

    def _prepare(self, position: int, state: TensorState, density: float | None) -> None:
        memory = state.memory
        memory.step, memory.is_average = state.steps, self.reduction == "average"
        memory.density, memory.world_size = density, self.world_size
        if self.settings_of is not None and self.finishes:
            settings = self.settings_of(position)
            if settings is not state.settings:
                memory.tune(**settings)
                state.settings = settings

    def _goes_dense(self, state: TensorState) -> bool:
        if len(self._is_dense) >= MOST_ANSWERS:  # another density at every step
            self._is_dense.clear()
        # All ranks decide alike without communication, because these quantities are the same.
        return self.configuration.goes_dense(
            state.spec, state.steps, self.world_size, self.exchange, self.placement, state.pace
        )

    def _note_nonfinite(self, ticket: TensorStep, error: NonFiniteGradient, *, dense: bool) -> None:
        """Report NaN or Inf in a gradient to the other ranks: send no entries, and set the
        carrier's flag if the carrier is not yet sent. Two cases are reported as a failure, so that
        all ranks raise an error: ``on_nonfinite`` is "raise", or only the sum of gradient and
        residual overflowed."""
        ticket.is_finite = False
        if self.configuration.on_nonfinite == "raise" or not error.is_of_gradient:
            ticket.fail(error)
        else:
            ticket.outgoing = self.pipeline.send_nothing(
                ticket.state, ticket.parts.selector, dense=dense
            )

    def poison(
        self, error: Exception, key: str, dtype: np.dtype | type, *, has_carrier: bool = True
    ) -> tuple[np.ndarray, Ticket]:
        """Return a carrier and a ticket for the gradient of an unregistered tensor. The carrier's
        flag reports the failure to the other ranks; the ticket keeps ``error`` for this rank.
        Without ``has_carrier``, Horovod reduces the gradient itself, and the carrier is not
        sent."""
        layout = carrier_layout(self.carrier_dtype or dtype, self.world_size, self.has_replica)
        # Pass no position, because the step must not count this tensor among its tensors.
        run = self.transactions.open_run(None)
        ticket = Ticket(run, key, layout)
        ticket.error, ticket.has_carrier = error, has_carrier
        run.errors.append(in_words(error))
        carrier = layout.write(self.rank, 0, failed=True)
        if has_carrier:
            run.is_reported = True
            self.stats.count_bytes("carrier", carrier.nbytes)
        return carrier, ticket

    def _write_wire(self, ticket: TensorStep, dense: bool) -> np.ndarray:
        sent, state = ticket.outgoing, ticket.state
        spec = state.spec
        pace = state.pace and state.pace[:2]
        moment = _moment(state.steps, dense, ticket.scale, pace, state.memory.settings)
        ticket.checksum = crc32(moment, self._started[ticket.position]) & CHECKSUM_MASK
        carrier = ticket.layout.write(
            self.rank,
            ticket.checksum,
            failed=ticket.error is not None,
            replica=self.applied.get(spec.key, 0) if self.has_replica else 0,
            is_finite=ticket.is_finite,
        )
        with self.transactions.lock:  # a call of Stats would cost every tensor more
            self.stats.bytes["carrier"] += carrier.nbytes
        if not dense:
            return carrier
        everything = None if sent is None else sent.dense
        # A failed rank sends zeros, because all ranks must reduce arrays of the same length.
        if everything is None:
            everything = np.zeros(spec.numel, carrier.dtype)
        self.stats.count_bytes("dense", everything.nbytes)
        return np.concatenate([carrier, everything.astype(carrier.dtype, copy=False)])

    # -- a bucket is full -------------------------------------------------------------------------

    def begin_passes(self, bucket: BucketRun) -> None:
        """Launch a bucket's passes (the kernels that add gradients to residuals) on devices, and
        begin to copy their results to the host. Errors are not raised here: if a pass was not
        launched, reading its result later raises one."""
        devices = self.transactions.devices
        if devices is None:
            return
        answers: list[object] = []
        copies = [each.late for each in bucket.begun]
        late = [each for each in copies if each is not None and not isinstance(each, np.ndarray)]
        for ticket in bucket.begun:
            is_current = self.transactions.is_current(ticket.position, ticket.run)
            if ticket.accumulated is None or not is_current:
                continue
            _, moments, taking, _ = ticket.accumulated
            answers.append(moments if taking is None else taking)
        if not (answers or late):  # DDP has copied all gradients to the host already
            return
        with contextlib.suppress(Exception):
            bucket.has_arrived = devices.send(answers, late)

    def converse(self, bucket: BucketRun, run: StepRun) -> None:
        """Make the frames (encoded selections) that the bucket still lacks, and begin its exchange.
        The caller then calls ``bucket.advance`` until it returns None, and ``receive``, even after
        a failure, because other ranks take part in the collectives."""
        if bucket.begun:
            self._send_begun(bucket)
        if self.configuration.select_over == "group":
            self._select_merged(bucket, run)

        def select(position: int, gradient: np.ndarray) -> np.ndarray:
            # After a rollback, the state belongs to the next step.
            if run.failure is not None:
                raise run.failure
            ticket = bucket.sending[position]
            sent = ticket.outgoing = self.pipeline.send(
                ticket.state, gradient, dense=False, is_summed=True, parts=ticket.parts
            )
            assert sent.frame is not None
            return sent.frame

        members = {}
        for position in sorted(bucket.sending):
            ticket = bucket.sending[position]
            state, parts = ticket.state, ticket.parts
            # If a tensor has no Outgoing, the bucket's message has the tensor's error.
            members[position] = Member(
                position, state.spec, state.part, state.steps, parts.selector, parts.codec,
                parts.density, ticket.outgoing or Outgoing(), state.exchange_memo,
            )  # fmt: skip
        context = ExchangeContext(
            rank=self.rank,
            world_size=self.world_size,
            step=self.transactions.steps_of(bucket.entered),
            configuration=self.configuration.checksum,
            bucket=bucket.index,
            members=members,
            keys=self.keys,
            errors=distinct(bucket.errors + run.errors),
            kernels=self.pipeline.kernels,
            select=select,
            selector=self.configuration.selector,
            placement=self.placement,
            counts_together=self.counts_together,
        )
        bucket.began_s = self.spans.now()
        bucket.conversation = self._carry(self.pipeline.exchange.run(context), bucket.index)

    def _send_begun(self, bucket: BucketRun) -> None:
        """Make the frames (encoded selections) of tensors that waited until the bucket was full or
        a device had finished. Their carriers were sent earlier, and so could not report an error.
        Therefore a missing frame reports NaN or Inf in a gradient, and the bucket's message reports
        a failure."""
        devices = self.transactions.devices
        if devices is not None and bucket.has_arrived is None:  # a member is missing
            self.begin_passes(bucket)
        begun, bucket.begun = bucket.begun, []
        if devices is not None:
            for ticket in reversed(begun):  # one wait: the last copy ends after all others
                if ticket.late is not None:
                    with contextlib.suppress(Exception):  # raised again for the tensor
                        ticket.fetch()
                    break
        self._send_rows(bucket, begun)
        left = [
            partial(self._send_alone, bucket, ticket)
            for ticket in begun
            if ticket.outgoing is None and ticket.error is None
        ]
        if devices is not None:
            devices.together(left)
            return
        for each in left:
            each()

    def _send_rows(self, bucket: BucketRun, begun: list[TensorStep]) -> None:
        rows = OutgoingRows(self.pipeline)
        for ticket in begun:
            try:
                if not self.transactions.is_current(ticket.position, ticket.run):
                    left = SparseError(f"the next step of {ticket.key!r} began before this ended")
                    raise ticket.run.failure or left
                rows.add(ticket)
            except Exception as error:
                self._note(bucket, ticket, error)
        try:
            rows.send()
        except Exception as error:  # no memory for the frames
            for ticket in begun:
                if ticket.outgoing is None and ticket.error is None:
                    self._note(bucket, ticket, error)

    def _send_alone(self, bucket: BucketRun, ticket: TensorStep) -> None:
        try:
            gradient, accumulated = ticket.fetch(), ticket.accumulated
            ticket.gradient = ticket.accumulated = None
            ticket.outgoing = self.pipeline.send(
                ticket.state, gradient, dense=False, parts=ticket.parts, accumulated=accumulated
            )
        except Exception as error:
            self._note(bucket, ticket, error)

    def _note(self, bucket: BucketRun, ticket: TensorStep, error: Exception) -> None:
        ticket.late = ticket.gradient = ticket.accumulated = None
        if isinstance(error, NonFiniteGradient):
            self._note_nonfinite(ticket, error, dense=False)
        else:
            ticket.fail(error)
        if ticket.outgoing is None:
            del bucket.sending[ticket.position]

    def _select_merged(self, bucket: BucketRun, run: StepRun) -> None:
        in_order = sorted(bucket.sending.items())
        tickets = [ticket for _, ticket in in_order if ticket.accumulated is not None]
        if not tickets:
            return
        try:
            if run.failure is not None:  # after a rollback, the states belong to the next step
                raise run.failure
            send_merged(self.pipeline, tickets)
        except Exception as error:
            keys = ", ".join(repr(ticket.key) for ticket in tickets)
            bucket.errors.append(f"selecting from {keys} as one: {in_words(error)}")

    def _carry(self, conversation: Conversation, index: int) -> Conversation:
        """Run the exchange of the bucket number ``index``, so that exchanges need neither count
        bytes nor pad what their allgathers send."""
        request, phase = next(conversation), 0
        while True:
            array, place = request.array, (index, phase)
            padding = self.padding if request.kind == "allgather" else None
            if padding is not None:
                request = Request("allgather", padding.pack(array, place, self.world_size))
            with self.transactions.lock:
                self.stats.bytes["payload"] += array.nbytes
                self.stats.bytes["padding"] += request.array.nbytes - array.nbytes
            received = yield request
            with self.transactions.lock:
                self.stats.received_bytes += received.nbytes
            if padding is not None:
                received = padding.unpack(received, place, array.dtype)
            phase += 1
            try:
                request = conversation.send(received)
            except StopIteration as stop:
                arrivals: dict[int, Arrival] = stop.value
                return arrivals


@lru_cache(maxsize=64, typed=True)  # the tensors of a step have mostly equal arguments
def _moment(steps: int, dense: bool, scale: float, pace: Value, settings: str) -> bytes:
    return f"{steps}|{dense}|{scale}|{pace}|{settings}".encode()
