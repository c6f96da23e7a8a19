"""The receiving half of a step, which sums the entries of all ranks and returns the reduced
gradients. A carrier (``wire.carrier``) is the small array that Horovod reduces in place of a
gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import CorruptPayload, NonFiniteGradient, PeerFailure, RankMismatch
from hvd_sparse.exchanges.context import Part
from hvd_sparse.kernels.arrays import aligned_empty, is_finite
from hvd_sparse.kernels.contract import Kernels, Moments, Surplus
from hvd_sparse.kernels.rows import ARRIVED, ARRIVED_ROW, FRAME, FRAME_ROW, address
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.records import BucketRun, TensorStep, Ticket, in_words, unscaled
from hvd_sparse.step.transactions import Transactions
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.wire.carrier import CHECKSUM_MASK, CarrierReport
from hvd_sparse.wire.frame import crc32, decode_for, frame_head

MOST, MOST_HALF = 1e38, 6.5e4
"""Results below ``MOST`` are finite in float32 and bfloat16, and results below ``MOST_HALF`` in
float16, even after rounding."""
HALF_LIMIT = 65520.0
"""The smallest magnitude that becomes Inf as float16."""
MOST_FACTOR = 1e6
"""A sum is checked for overflow if it is multiplied by a factor above this. Horovod's default
factors are at most 1."""

Sum = tuple[TensorSpec, Codec, Sequence[Part], np.ndarray, float]
"""A request to write a tensor's sum, multiplied by a factor: the tensor, the codec, the received
selections, the flat array for the result, and the factor."""


class Receiver:
    def __init__(
        self, configuration: Configuration, specs: Sequence[TensorSpec], kernels: Kernels
    ) -> None:
        self.configuration, self.specs = configuration, list(specs)
        is_sparse = configuration.is_sparse
        self.compressed = {i for i, s in enumerate(specs) if is_sparse(s.shape, s.numel)}
        self.finishes = configuration.memory.finishes
        self.has_replica = configuration.check_replicas_every > 0
        self.pipeline = Pipeline(configuration, kernels)
        self.transactions = Transactions(configuration, self.specs)
        self.reduction = "average"
        self.applied: dict[str, int] = {}

    def receive(self, bucket: BucketRun) -> None:
        """Called when a bucket's exchange is over. If the exchange determines which entries leave
        the residuals (``settles_later``), update the memories."""
        if bucket.began_s:
            keys = tuple(self.specs[position].key for position in bucket.members)
            self.pipeline.spans.tell("exchange", keys, bucket.began_s, bucket.index)
        if not self.pipeline.exchange.settles_later:
            return
        with self.transactions.lock:
            for position, arrival in bucket.arrivals.items():
                ticket = bucket.sending[position]
                if not (ticket.is_finite and arrival.is_finite):
                    continue  # the step has no effect
                # A tensor's next step may have begun while this exchange was running.
                if self.transactions.is_current(position, ticket.run):
                    self.pipeline.settle(ticket, arrival)

    def report(self, ticket: Ticket, reduced: np.ndarray) -> CarrierReport:
        """Return what the reduced carrier reports: Horovod's factor, and how many ranks failed or
        had NaN or Inf. Raises the errors of ``CarrierLayout.read``, for example if ranks are at
        different steps."""
        layout, pace = ticket.layout, None if ticket.state is None else ticket.state.pace
        rate = None if pace is None else pace.rate
        ticket.report = layout.read(reduced[: layout.size], ticket.key, ticket.checksum, rate)
        return ticket.report

    def result(self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray) -> np.ndarray:
        """Return a tensor's reduced gradient, flat. ``reduced`` is Horovod's result for the array
        that ``compress`` returned. ``parameter`` is the parameter's current value, flat, if the
        memory needs it. After an error, the caller must roll the step back."""
        report = ticket.report or self.report(ticket, reduced)
        if ticket.error is not None:
            words = in_words(ticket.error)
            raise PeerFailure(f"compressing failed on this rank: {words}") from ticket.error
        if report.failures:
            raise PeerFailure(
                f"tensor {ticket.key!r}: compressing failed on {report.failures} ranks; see their "
                "output for the reason"
            )
        assert isinstance(ticket, TensorStep)  # all other tickets have an error
        world_size = ticket.layout.world_size
        if world_size > 1:  # one rank's sum is its average
            is_average = abs(report.factor * world_size - 1) < 1e-3
            self.reduction = "average" if is_average else "sum"
        if not self.transactions.is_current(ticket.position, ticket.run):
            if ticket.run.failure is not None:  # another tensor's thread has just rolled it back
                raise ticket.run.failure
            raise compressed_again(repr(ticket.key))
        sent, state = ticket.outgoing, ticket.state
        assert sent is not None
        most: float | None = math.inf
        if sent.dense is not None:
            result = reduced[ticket.layout.size :].astype(state.spec.accumulator, copy=False)
            is_summed = is_finite(result)
        else:
            most = self._sum(ticket, report.factor)
            is_summed = most is not None
            assert ticket.out is not None
            # Otherwise the array would live as long as the ticket.
            result, ticket.out = ticket.out, None
        # Under the lock, because another tensor's thread may roll the step back.
        with self.transactions.lock:
            # Otherwise ticket and bucket would refer to each other, until Python's collector of
            # cycles frees them. Telemetry reads the tickets after the step.
            if not self.pipeline.observes:
                ticket.bucket.sending.pop(ticket.position, None)
            if ticket.run.failure is not None:
                raise ticket.run.failure
            if sent.dense is None:
                state.counted = ticket.key, sent, state.part.stop - state.part.start
            else:
                state.counted = ticket.key, None, sent.dense.nbytes
            is_good = is_summed and not report.non_finite
            return self._finish(ticket, result, parameter, is_finite=is_good, most=most or 0.0)

    def _sum(self, ticket: TensorStep, factor: float) -> float | None:
        """Write the sum of all ranks' entries of a tensor, multiplied by ``factor``, which Horovod
        has applied to the carrier. Return an upper bound of the magnitudes in the sum. Return None,
        on all ranks alike, if a gradient has NaN or Inf or the sum overflows."""
        bucket, state = ticket.bucket, ticket.state
        arrival = bucket.arrivals.get(ticket.position)
        if arrival is None:  # a later step has discarded the exchange
            names = " or ".join(repr(self.specs[i].key) for i in bucket.members)
            raise compressed_again(names)
        with self.transactions.lock:  # tensors of a bucket may come in several threads
            if bucket.summed is None:
                bucket.summed = factor, self._sum_together(bucket, factor)
            used, bounds = bucket.summed
            most = bounds.pop(ticket.position, None)
        if not arrival.is_finite:
            return None
        if most is not None and used == factor:
            return most
        if self.finishes:
            factor *= state.memory.gain
        spans, spec = self.pipeline.spans, state.spec
        began_s = spans.now()
        assert ticket.out is not None
        given = spec, ticket.parts.codec, arrival.parts, ticket.out, factor
        try:
            most = write_sum(given, self.pipeline.kernels)
        except NonFiniteGradient:
            return None
        spans.tell("decode", (spec.key,), began_s)
        return most

    def _sum_together(self, bucket: BucketRun, factor: float) -> dict[int, float]:
        """Write the sums of a bucket's tensors in one call, to arrays that are allocated if the
        tickets have none. Return upper bounds of the sums' magnitudes, by position. All sums are
        multiplied by ``factor``, which was read from the bucket's first carrier. Two kinds of sums
        are left to ``_sum``: those whose own carrier has another factor, and those that may
        overflow."""
        pipeline, sums = self.pipeline, dict[int, Sum]()
        spans, began_s = pipeline.spans, pipeline.spans.now()
        surplus: list[tuple[np.ndarray, Selection]] = []
        for position, ticket in bucket.sending.items():
            spec, out = ticket.state.spec, ticket.out
            if out is None:
                out = ticket.out = aligned_empty(spec.numel, spec.accumulator)
            arrival, sent = bucket.arrivals.get(position), ticket.outgoing
            if arrival is None or not arrival.is_finite or sent is None:
                continue
            # Not if the step was rolled back, because the next step uses its vector again.
            if sent.surplus is not None and self.transactions.is_current(position, ticket.run):
                surplus.append(sent.surplus)
            own = factor * ticket.state.memory.gain if self.finishes else factor
            sums[position] = spec, ticket.parts.codec, arrival.parts, out, own
        bounds = _write_sums(sums, surplus, pipeline.kernels)
        if spans.is_heard:
            sizes = {self.specs[i].key: self.specs[i].numel for i in bounds}
            spans.tell_together("decode", sizes, began_s)
        return bounds

    def finish_dense(
        self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """Return the gradient for the optimizer, for a tensor that Horovod reduced uncompressed. It
        is equal on all ranks. NaN and Inf are detected in ``reduced``, because no carrier reports
        them. After an error, the caller must roll the step back by ``Transactions.fail``."""
        assert ticket.position is not None
        is_number = is_finite(reduced)
        if is_number and ticket.state is None:
            ticket.run.completed.add(ticket.position)
            return reduced
        if is_number and ticket.scale != 1.0:
            reduced = unscaled(reduced, ticket.scale)
        return self._finish(ticket, reduced, parameter, is_finite=is_number)

    def _finish(
        self,
        ticket: Ticket,
        reduced: np.ndarray,
        parameter: np.ndarray,
        *,
        is_finite: bool,
        most: float = math.inf,
    ) -> np.ndarray:
        """Return the gradient for the optimizer: ``reduced``, processed by the memory
        (``Memory.finish``) and multiplied by the loss scale. If it has NaN or Inf, which all ranks
        notice alike, raise NonFiniteGradient or return NaN, as ``on_nonfinite`` asks, and the step
        has no effect. ``most`` is an upper bound of the magnitudes in ``reduced``."""
        is_touched = False
        assert ticket.position is not None
        spec = self.specs[ticket.position]
        if is_finite and self.finishes and ticket.state is not None:
            is_compressed = ticket.bucket is not None
            try:
                with np.errstate(over="ignore", invalid="ignore"):  # checked below
                    finished = ticket.state.memory.finish(
                        reduced, parameter, is_compressed, self.pipeline.kernels
                    )
                is_touched, reduced = finished is not reduced, finished
            except NonFiniteGradient:  # raised before NaN spoils the only buffer
                is_finite = False
        if is_finite and ticket.scale != 1.0:
            with np.errstate(over="ignore"):
                reduced = reduced * reduced.dtype.type(ticket.scale)
        # From here on, the tensor's next step may commit what this step has written.
        ticket.run.completed.add(ticket.position)
        is_as_wide = ticket.scale == 1.0 and spec.dtype != "float16"
        is_sure = not is_touched and (
            is_as_wide or most * ticket.scale < (MOST_HALF if spec.dtype == "float16" else MOST)
        )
        kernels = self.pipeline.kernels
        if is_finite and (is_sure or stays_finite(reduced, spec.dtype, kernels)):
            if self.has_replica and ticket.bucket is not None and ticket.state is not None:
                is_due = (ticket.state.steps + 1) % self.configuration.check_replicas_every == 0
                # Between two checks, all ranks use 0.
                checksum = crc32(reduced.tobytes()) & CHECKSUM_MASK if is_due else 0
                self.applied[ticket.key] = checksum
            return reduced
        if self.configuration.on_nonfinite == "raise":
            how = "" if ticket.bucket is not None else ", which is sent dense"
            # The callers roll the step back: with TensorFlow, its other tensors may still enter it.
            raise NonFiniteGradient(
                f"tensor {ticket.key!r}{how}: the sum of the ranks' gradients has NaN or Inf "
                f"among its {spec.numel} entries, or leaves the range of {spec.dtype}; check the "
                "step's loss, lower the learning rate or the loss scale, or clip gradients "
                "before they are compressed"
            )
        self.transactions.leave_no_trace(ticket.run, ticket.position)
        # NaN on all ranks alike, so that a GradScaler skips the step and no replica applies it.
        return np.full(spec.numel, np.nan, spec.accumulator)


def compressed_again(keys: str) -> RankMismatch:
    return RankMismatch(
        f"tensor {keys} was compressed again, or its state was saved or loaded, before its last "
        "step was decompressed: give every tape or optimizer that reduces it a compressor of its "
        "own, and call state_dict(), save() and load() only after optimizer.step()"
    )


def stays_finite(gradient: np.ndarray, dtype: str, kernels: Kernels) -> bool:
    if not isinstance(gradient, np.ndarray):
        moments: Moments = kernels.moments(gradient)
        return moments.is_finite and (dtype != "float16" or moments.abs_max < HALF_LIMIT)
    if dtype == "float16":
        return not gradient.size or float(np.abs(gradient).max()) < HALF_LIMIT
    return is_finite(gradient)


def write_sum(given: Sum, kernels: Kernels) -> float:
    """Write the sum that ``given`` requests to the array in ``given``. Return an upper bound of the
    magnitudes in the sum; it is infinite if unknown. Raises CorruptPayload if received entries are
    not for this tensor. If the sum overflows, all ranks raise NonFiniteGradient and leave the array
    unchanged."""
    spec, _, _, out, factor = given
    arrived, most = _gather(given, kernels)
    if most == math.inf:
        _check_range(spec, arrived, factor, kernels)
    kernels.assemble(out, arrived, factor)
    return most


def _write_sums(sums: Mapping[int, Sum], surplus: Surplus, kernels: Kernels) -> dict[int, float]:
    """Write a bucket's sums, which are given by the tensors' positions. In the same call, add the
    entries in ``surplus`` back to the vectors from which they were taken. Return upper bounds of
    the magnitudes in those sums that are written. A sum is not written if a frame is corrupt or the
    sum may overflow."""
    bounds, given = _write_rows(sums, kernels), []
    for position, each in sums.items():
        if position in bounds:
            continue
        try:
            arrived, most = _gather(each, kernels)
        except CorruptPayload:  # ``_sum`` raises it again, for its tensor
            continue
        if most < math.inf:
            *_others, out, factor = each
            bounds[position] = most
            given.append((out, arrived, factor))
    if given or surplus:
        kernels.assemble_together(given, surplus)
    return bounds


def _write_rows(sums: Mapping[int, Sum], kernels: Kernels) -> dict[int, float]:
    """Write those sums that compiled code supports and that have the codec and the dtype of the
    first such sum. Return upper bounds of their magnitudes."""
    bounds: dict[int, float] = {}
    written: list[int] = []
    rows: list[bytes] = []
    frames: list[bytes] = []
    common: tuple[Codec, np.dtype] | None = None
    for position, (_, codec, parts, out, factor) in sums.items() if kernels.most_in_row else ():
        if not (codec.row_body and isinstance(out, np.ndarray) and abs(factor) <= MOST_FACTOR):
            continue
        if common is None:
            common = codec, out.dtype
        elif not (codec is common[0] and out.dtype == common[1]):
            continue
        there = [FRAME_ROW.pack(address(s), s.size) for _, s in parts if isinstance(s, np.ndarray)]
        if there and len(there) == len(parts):
            written.append(position)
            rows.append(ARRIVED_ROW.pack(address(out), out.size, len(frames), len(parts), factor))
            frames += there
    if common is None or not rows:
        return bounds
    codec, dtype = common
    table = np.frombuffer(bytearray().join(rows), ARRIVED)  # writable
    received = np.frombuffer(bytearray().join(frames), FRAME)
    kernels.sum_rows(table, received, frame_head(codec, dtype), codec.row_body, dtype)
    for position, most in zip(written, table["most"].tolist()):
        if most == most:
            bounds[position] = most * abs(sums[position][-1])
    return bounds


def _check_range(spec: TensorSpec, parts: list[Selection], factor: float, kernels: Kernels) -> None:
    out = aligned_empty(spec.numel, spec.accumulator)
    for each in (1.0, factor):
        with np.errstate(over="ignore", invalid="ignore"):
            kernels.assemble(out, parts, each)
        if not is_finite(out):
            raise NonFiniteGradient(
                f"tensor {spec.key!r}: the sum of the ranks' entries leaves the range of "
                f"{spec.accumulator}"
            )


def _gather(given: Sum, kernels: Kernels) -> tuple[list[Selection], float]:
    """Decode the selections that were received for a tensor. Return them with indices in the whole
    tensor, and an upper bound of the magnitudes in their sum times the factor. The bound ignores
    rounding; it is infinite if the sum may overflow. Raises CorruptPayload if a selection is not
    for this tensor."""
    spec, codec, parts, out, factor = given
    dtype, arrived, most = out.dtype, [], 0.0
    for place, sent in parts:
        start, numel = place.start, place.stop - place.start
        if not isinstance(sent, Selection):
            sent = decode_for(spec.key, numel, dtype, codec, sent, kernels)
        elif sent.numel != numel or sent.values.dtype != dtype:
            raise CorruptPayload(
                f"tensor {spec.key!r} has {numel} entries of {dtype}, but a payload for it has "
                f"{sent.numel} of {sent.values.dtype}"
            )
        # If the sums of squares do not overflow, the sum of the parts is far from overflowing.
        most += math.sqrt(sent.values.dot(sent.values))
        if numel != spec.numel:
            sent = Selection(sent.indices + np.uint32(start), sent.values, spec.numel)
        arrived.append(sent)
    is_safe = most < math.inf and abs(factor) <= MOST_FACTOR
    return arrived, most * abs(factor) if is_safe else math.inf
