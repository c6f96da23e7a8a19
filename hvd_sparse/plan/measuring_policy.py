"""Base class of policies that measure the first steps, and again if step times change."""

from __future__ import annotations

import logging
import time
from typing import Any, ClassVar

from hvd_sparse.checks import count_from_density
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.plan.departure import Departure
from hvd_sparse.plan.fallback import StepClock
from hvd_sparse.plan.first_steps import FirstSteps
from hvd_sparse.plan.measurements import StepStarts
from hvd_sparse.plan.policy import Owner, Policy
from hvd_sparse.plan.route import expected_bytes
from hvd_sparse.plan.trial import SPARSE
from hvd_sparse.schedules.contract import LONG_RUN
from hvd_sparse.state.gathering import Gatherer
from hvd_sparse.step.records import StepRun, TensorStep, Ticket
from hvd_sparse.step.step import Step

logger = logging.getLogger("hvd_sparse")


class MeasuringPolicy(Policy):
    """Policy that measures the first steps, and adopts one decision on all ranks.

    Some later steps are timed too. If their time departs from that of the first steps after the
    decision, the policy measures and decides again.

    Parameters
    ----------
    step : the compressor's step
    planning : measures the first steps and makes the decision
    """

    timing: ClassVar[str]
    """Name of the timing of messages, for the watchdog."""
    departed: ClassVar[str]
    """End of the warning that step times have departed."""

    def __init__(self, step: Step, planning: FirstSteps[Any]) -> None:
        self._planning = planning
        self._starts = StepStarts()
        self._run: StepRun | None = None
        self._came_s = 0.0
        self._clock, self._departure = StepClock(), Departure()
        self._is_merged = step.configuration.select_over == "group"
        self._listen(step)

    def _adopt(self, owner: Owner, decision: Any) -> None:
        """Apply the decision, at the beginning of a step on all ranks."""
        raise NotImplementedError

    def begin(self, owner: Owner, position: int | None) -> str:
        if self._planning.is_over:
            if self._starts.is_between and self._planning.plan is not None:
                self._watch_step(owner, position)
            return SPARSE
        self._came_s = time.perf_counter()
        if self._starts.begins(position):
            self._begin_step(owner)
            self._came_s = time.perf_counter()
        if position is not None:
            key = owner.step.specs[position].key
            self._planning.measurements.arrive(key, self._came_s)
        return SPARSE

    def _begin_step(self, owner: Owner) -> None:
        run, ledger, planning = self._run, owner.watchdog.ledger, self._planning
        was_good = run is not None and run.failure is None and run.is_finite
        self._run = None
        is_due = planning.is_due
        if is_due:
            ledger.begin(self.timing)
        try:
            with ledger.waiting():
                plan = planning.next(owner.messenger, owner.limit_s, was_good=was_good)
        except ExchangeTimeout as error:
            raise owner.explain(error) from error
        finally:
            if is_due:
                ledger.end(self.timing)
        if plan is not None:
            owner.step.spans.remove(self._listener)
            self._adopt(owner, plan)
            self._clock.restart()
            self._departure.restart()

    def _watch_step(self, owner: Owner, position: int | None) -> None:
        """Begin a step after the decision, and measure again if step times have departed.

        Collective if a window of steps has ended; no exchange of this compressor is running then.
        """
        self._starts.begins(position)
        departure = self._departure
        departure.begin(self._clock.begin())
        if not departure.is_due:
            return
        slowest_s = max(self._tell_all(owner, "review", departure.median_s))
        if departure.judge(slowest_s):
            if owner.collective.rank == 0:
                logger.warning(
                    "compressor %s: steps take %.1f ms, and %.1f ms when %s",
                    owner.name,
                    1e3 * slowest_s,
                    1e3 * (departure.first_s or 0.0),
                    self.departed,
                )
            self._measure_anew(owner)
        self._clock.resume()

    def _tell_all(self, owner: Owner, what: str, mine: object) -> list[Any]:
        """Return the values of all ranks, in rank order.  Collective."""
        ledger = owner.watchdog.ledger
        name = f"hvd_sparse.{self._planning.label}.{owner.name}.{what}"
        ledger.begin(self.timing)
        try:
            with ledger.waiting():
                return Gatherer(owner.collective, name, owner.limit_s).tell_all(mine)
        except ExchangeTimeout as error:
            raise owner.explain(error) from error
        finally:
            ledger.end(self.timing)

    def _measure_anew(self, owner: Owner) -> None:
        owner.step.spans.remove(self._listener)
        self._planning.restart()
        self._run = None
        self._listen(owner.step)

    def sent(self, owner: Owner, position: int, ticket: Ticket) -> None:
        """Record the bytes that a tensor sends, scaled to the density after warm-up."""
        if self._planning.is_over:
            return
        self._run = ticket.run
        if isinstance(ticket, TensorStep) and ticket.error is None:
            spec, configuration = owner.step.specs[position], owner.configuration
            nbytes = expected_bytes(configuration, spec.numel, spec)
            frame = None if ticket.outgoing is None else ticket.outgoing.frame
            if frame is not None:  # else this step of it runs dense, or the exchange makes it
                now = configuration.density(ticket.state.steps, spec, ticket.state.pace)
                later, nbytes = configuration.density(LONG_RUN, spec), frame.nbytes
                if now and later and now != later:
                    numel = spec.numel
                    nbytes *= count_from_density(numel, later) / count_from_density(numel, now)
            self._planning.measurements.send(spec.key, nbytes)
        measurements, own_s = self._planning.measurements, time.perf_counter() - self._came_s
        told_s = measurements.take_told()
        # With one selection per group, the time per tensor that does not depend on the groups
        # counts as part of the backward pass.
        measurements.spend(told_s if self._is_merged else own_s)

    def end(self, owner: Owner) -> None:
        self._starts.end()

    def arrived(self, owner: Owner) -> None:
        if not self._planning.is_over:
            self._planning.measurements.end(time.perf_counter())
        elif self._departure.is_watching:
            self._clock.end()

    def fail(self) -> None:
        self._clock.fail()

    def _listen(self, step: Step) -> None:
        self._listener = self._planning.measurements.listen
        step.spans.add(self._listener)

    def forget_world(self, owner: Owner) -> None:
        self._measure_anew(owner)
        self._starts = StepStarts()
