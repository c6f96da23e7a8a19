"""What all ranks sent, taken in: a tensor's reduced gradient, and what the step leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hvd_sparse.core.kernels.aligned import aligned_empty
from hvd_sparse.core.step.loss_scale import rescaled, stays_finite, unscaled
from hvd_sparse.core.step.records import BucketRun, Ticket, in_words
from hvd_sparse.errors import NonFiniteGradient, PeerFailure, RankMismatch
from hvd_sparse.exchanges.context import Arrival

if TYPE_CHECKING:
    from hvd_sparse.core.step.step import Step


class Receiving:
    """Of the step object ``step``, whose state it changes."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def receive(self, bucket: BucketRun, arrivals: dict[int, Arrival]) -> None:
        """Accept what an exchange brought for a bucket, and keep back what did not leave this
        rank."""
        bucket.arrivals = arrivals
        if not self._step.exchange.settles_later:
            return
        with self._step.staging.lock:
            for position, arrival in arrivals.items():
                ticket = bucket.sending[position]
                if ticket.is_finite and self._step.staging.is_current(
                    position, ticket.run
                ):  # else there is nothing to keep
                    state = self._step.staging.staged(position)
                    self._step.pipeline.settle(state, arrival.left, arrival.returned, arrival.memo)

    def result(
        self,
        ticket: Ticket,
        reduced: np.ndarray,
        parameter: np.ndarray,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """The reduced gradient of a tensor: flat, of the accumulator's dtype.

        reduced : what Horovod made of the array that ``compress`` gave it
        parameter : the tensor's value, flat, for memories that finish with it
        out : where the result may go; a sparse step's is written there, and nothing is where the
            step fails
        """
        report = ticket.report(reduced)
        if ticket.error is not None:
            raise PeerFailure(
                f"compressing failed on this rank: {in_words(ticket.error)}"
            ) from ticket.error
        if report.failures:
            raise PeerFailure(
                f"tensor {ticket.key!r}: compressing failed on {report.failures} ranks; their own "
                "output says why"
            )
        assert (
            ticket.position is not None
            and ticket.bucket is not None
            and ticket.outgoing is not None
        )
        if ticket.layout.world_size > 1:  # one rank's sum is its average
            is_average = abs(report.factor * ticket.layout.world_size - 1) < 1e-3
            self._step.reduction = "average" if is_average else "sum"
        if not self._step.staging.is_current(ticket.position, ticket.run):
            if (
                ticket.run.failure is not None
            ):  # another tensor's thread has just taken the step back
                raise ticket.run.failure
            raise RankMismatch(
                f"tensor {ticket.key!r} was compressed again before its last step was "
                "decompressed: "
                "give every tape or optimizer that reduces it a compressor of its own"
            )
        spec = self._step.specs[ticket.position]
        if ticket.outgoing.dense is not None:
            result = reduced[ticket.layout.size :].astype(spec.accumulator, copy=False)
        else:
            result = aligned_empty(spec.numel, spec.accumulator) if out is None else out
            parts, steps = (
                ticket.bucket.arrivals[ticket.position].parts,
                self._step.staging.steps_of(ticket.position),
            )
            self._step.pipeline.receive(spec, parts, report.factor, result, steps)
        with self._step.staging.lock:
            if (
                ticket.run.failure is not None
            ):  # another tensor's thread has taken the step back meanwhile
                raise ticket.run.failure
            self._step.count(ticket)
            return self._finish(ticket, result, parameter, is_finite=not report.non_finite)

    def enter_dense(self, position: int, scale: float = 1.0) -> Ticket:
        """A tensor that is never compressed begins a step: what its memory makes of it goes back
        with the others'."""
        with self._step.staging.lock:
            run = self._step.staging.open_run(position)
            if self._step.configuration.memory.finishes:
                self._step.prepare(position, self._step.staging.enter(position, run))
            else:
                run.entered.add(position)
        return Ticket(run, self._step.specs[position].key, position=position, scale=scale)

    def finish_dense(
        self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray
    ) -> np.ndarray:
        """What the optimizer is given for a tensor that Horovod reduced by itself.

        It has no carrier: NaN or Inf are seen in the result, which is the same on all ranks.
        """
        is_finite = bool(np.isfinite(reduced).all())
        if not is_finite and self._step.configuration.on_nonfinite == "raise":
            error = NonFiniteGradient(
                f"tensor {ticket.key!r}, which travels dense: "
                f"{np.count_nonzero(~np.isfinite(reduced))} of {reduced.size} "
                "entries of the reduced gradient are NaN or Inf, on some rank; look for the step's "
                "loss, lower the "
                "learning rate, or clip gradients before they are compressed"
            )
            self._step.fail(ticket.run, error)
            raise error
        if is_finite and self._step.configuration.memory.finishes:
            reduced = unscaled(reduced, ticket.scale)
        elif is_finite:
            return reduced
        return self._finish(ticket, reduced, parameter, is_finite=is_finite)

    def _finish(
        self, ticket: Ticket, reduced: np.ndarray, parameter: np.ndarray, *, is_finite: bool
    ) -> np.ndarray:
        """The last touch, in the units of the scaled loss.  A step that is not finite everywhere
        leaves no trace."""
        assert ticket.position is not None
        spec = self._step.specs[ticket.position]
        if is_finite and self._step.configuration.memory.finishes:
            state = self._step.staging.staged(ticket.position)
            is_compressed = ticket.bucket is not None
            reduced = state.memory.finish(
                reduced, parameter, is_compressed, self._step.pipeline.kernels
            )
        reduced = rescaled(reduced, ticket.scale)
        ticket.run.completed.add(ticket.position)
        if is_finite and stays_finite(reduced, spec.dtype, ticket.scale):
            if ticket.bucket is not None:
                self._step.replicas.note(
                    ticket.key, self._step.staging.steps_of(ticket.position) + 1, reduced
                )
            return reduced
        self._step.leave_no_trace(ticket.run)
        return np.full(spec.numel, np.nan, spec.accumulator)
