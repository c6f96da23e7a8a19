"""The compressor that measures its first steps and then sends together what is best sent
together."""

from __future__ import annotations

import time
from typing import Any

import torch

from hvd_sparse.autotune.costmodel.predict import LONG_RUN
from hvd_sparse.autotune.group_plan import GroupPlan
from hvd_sparse.autotune.measurements import StepStarts
from hvd_sparse.autotune.planned_groups import Planning
from hvd_sparse.autotune.route import expected_bytes
from hvd_sparse.checks import count_from_density
from hvd_sparse.compatibility import PLANNED
from hvd_sparse.core.step.records import StepRun, Ticket
from hvd_sparse.errors import ExchangeTimeout, SparseError
from hvd_sparse.torch.compressor import TorchCompressor

TIMING = "the timing of messages for groups='planned'"


class PlannedCompressor(TorchCompressor):
    """A ``TorchCompressor`` with ``groups="planned"``.  Until there is a plan small neighbours
    travel together."""

    def __init__(self, params: Any, configuration: Any, process_set: Any, grad_scaler: Any) -> None:
        super().__init__(params, configuration, process_set, grad_scaler)
        self._default = list(self.step.buckets)
        self._planning = Planning(self.step, self.name)
        self._starts = StepStarts()
        self._run: StepRun | None = None
        self._listen()

    @property
    def plan(self) -> GroupPlan | None:
        return self._planning.plan

    def compress(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if isinstance(tensor, torch.nn.Parameter):
            return super().compress(tensor)  # which says what is wrong
        self._greet()
        if self._planning.is_over:
            return super().compress(tensor)
        came_s = time.perf_counter()
        try:
            position: int | None = self._index.find(tensor)
        except SparseError:
            position = None
        if self._starts.begins(position):
            self._begin_step()
            came_s = time.perf_counter()
        if position is None:
            return super().compress(
                tensor
            )  # which says what is wrong; the other ranks count this step, too
        measurements = self._planning.measurements
        measurements.arrive(self.step.specs[position].key, came_s)
        wire, ticket = super().compress(tensor)
        self._note(ticket if isinstance(ticket, Ticket) else ticket.ticket)
        measurements.spend(time.perf_counter() - came_s)
        return wire, ticket

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        self._starts.end()
        result = super().decompress(tensor, ctx)
        if not self._planning.is_over:
            self._planning.measurements.end(time.perf_counter())
        return result

    def _begin_step(self) -> None:
        run, ledger = self._run, self.watchdog.ledger
        was_good = run is not None and run.failure is None and run.is_finite
        self._run = None
        is_due = self._planning.is_due
        if is_due:
            ledger.begin(TIMING)
        try:
            with ledger.waiting():
                plan = self._planning.next(self.collective, self._limit_s, was_good=was_good)
        except ExchangeTimeout as error:
            self._explain(error)
        finally:
            if is_due:
                ledger.end(TIMING)
        if plan is not None:
            self.step.spans.remove(self._listener)
            self.step.regroup_at_start(plan.buckets(self.step.specs))

    def _note(self, ticket: Ticket) -> None:
        """What a tensor sends; as it will be behind a schedule's warm-up."""
        self._run = ticket.run
        if ticket.position is None or ticket.outgoing is None:
            return
        spec, configuration = self.step.specs[ticket.position], self.configuration
        nbytes = expected_bytes(configuration, spec.numel)
        if (
            ticket.outgoing.frame is not None
        ):  # else this step of it runs dense, or the exchange makes it
            now = configuration.density(self.step.staging.steps_of(ticket.position))
            later, nbytes = configuration.density(LONG_RUN), ticket.outgoing.frame.nbytes
            if now and later and now != later:
                nbytes *= count_from_density(spec.numel, later) / count_from_density(
                    spec.numel, now
                )
        self._planning.measurements.send(spec.key, nbytes)

    def _listen(self) -> None:
        self._listener = self._planning.measurements.listen
        self.step.spans.add(self._listener)

    def regroup(self, groups: Any) -> None:
        """As of every compressor; "planned" measures anew, and anything else ends measuring.
        Collective."""
        super().regroup(groups)
        self.step.spans.remove(self._listener)
        self._starts = StepStarts()
        if groups == PLANNED:
            self._planning.restart()
            self._listen()
        else:
            self._planning.stop()

    def _forget_world(self) -> None:
        super()._forget_world()
        self.step.regroup_at_start(self._default)  # new workers know of no plan
        self.step.spans.remove(self._listener)
        self._planning.restart()
        self._starts, self._run = StepStarts(), None
        self._listen()
