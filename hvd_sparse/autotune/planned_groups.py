"""Measuring the first steps of a run, and then one plan of rank 0's for all:
``groups="planned"``."""

from __future__ import annotations

import logging
import time

from hvd_sparse.autotune.departure import Departure
from hvd_sparse.autotune.fallback import StepClock
from hvd_sparse.autotune.group_plan import GroupPlan, make_plan
from hvd_sparse.autotune.measurements import (
    STEPS,
    WARMUP,
    Measurements,
    StepStarts,
    sizes_of,
    time_messages,
)
from hvd_sparse.autotune.policy import Owner, Policy
from hvd_sparse.autotune.route import Route, expected_bytes
from hvd_sparse.autotune.trial import SPARSE
from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.compatibility import PLANNED
from hvd_sparse.core.step.records import StepRun, Ticket
from hvd_sparse.core.step.step import Step
from hvd_sparse.errors import ExchangeTimeout, PeerFailure
from hvd_sparse.resilience.gathering import Gatherer
from hvd_sparse.schedules.contract import LONG_RUN
from hvd_sparse.untyped import Report, Value

logger = logging.getLogger("hvd_sparse")

ENOUGH = STEPS // 2 + 1
"""Good steps without which ranks go on measuring, where steps failed."""


class Planning:
    """One compressor's: counts its steps, and says at which of them other groups are adopted.

    Parameters
    ----------
    step : of the compressor, with the buckets that it has until there is a plan
    name : of the compressor, for the collectives' names
    """

    def __init__(self, step: Step, name: str) -> None:
        self._step, self._name = step, name
        self.restart()

    def restart(self) -> None:
        """Measure anew: the ranks or the network are others."""
        self.measurements = Measurements()
        self.plan: GroupPlan | None = None
        self.is_over = False
        self._steps = 0

    def stop(self) -> None:
        """Measure no more: the groups were given."""
        self.plan, self.is_over = None, True

    @property
    def is_due(self) -> bool:
        """Tell whether the step that begins is one at which all ranks come together."""
        measured = self._steps - WARMUP
        return measured > 0 and measured % STEPS == 0

    def next(
        self, collective: Collective, timeout_s: float | None, *, was_good: bool
    ) -> GroupPlan | None:
        """Begin a step, on all ranks; return the plan at the step that adopts it, else None.

        Collective where ``is_due``.

        Parameters
        ----------
        collective, timeout_s : brings the ranks together; seconds after which that is an error
        was_good : the last step ended well
        """
        is_counted = was_good and self._steps > WARMUP
        if self.is_due:
            # Closes the last measured step, so that its numbers are in what is told.
            self.measurements.begin(0.0, was_good=is_counted)
            self.plan = self._agree(collective, timeout_s)
            is_counted = False  # it has been, and nothing was measured since
        self.is_over = self.plan is not None
        self._steps += 1
        self.measurements.begin(time.perf_counter(), was_good=is_counted)
        return self.plan

    def _agree(self, collective: Collective, timeout_s: float | None) -> GroupPlan | None:
        gatherer = Gatherer(collective, f"hvd_sparse.plan.{self._name}", timeout_s)
        told = gatherer.tell_all(self.measurements.to_dict())
        if min(each["steps"] for each in told) < ENOUGH:
            return None
        placement = self._step.placement or in_nodes_of(1, collective.rank, collective.world_size)
        route = Route(self._step.configuration, self._step.exchange, placement)
        name = f"hvd_sparse.plan.{self._name}.size"
        samples = gatherer.tell_all(
            time_messages(collective, name, route, sizes_of(told), timeout_s)
        )
        # One rank decides for all: another machine's floats could make another plan.
        decided = gatherer.tell_all(
            self._decide(route, told, samples) if collective.rank == 0 else None
        )[0]
        if "failure" in decided:
            raise PeerFailure(
                f"rank 0 could not plan the groups: {decided['failure']}; leave out "
                "groups='planned'"
            )
        plan = GroupPlan.from_dict(decided)
        if collective.rank == 0:
            logger.warning("compressor %s: %s", self._name, plan)
        return plan

    def _decide(self, route: Route, told: Value, samples: Value) -> Report:
        """Rank 0's; in words what went wrong, as the other ranks wait."""
        try:
            plan = make_plan(route, self._step.specs, told, samples, self._step.buckets)
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}
        return plan.to_dict()


TIMING = "the timing of messages for groups='planned'"


class PlannedGroups(Policy):
    """Measures the first steps and then sends together what is best sent together.

    Until there is a plan small neighbours travel together. With one, now and then some steps are
    timed; where they depart from what they took with it at first, it is planned anew.

    Parameters
    ----------
    step, name : of the compressor
    """

    def __init__(self, step: Step, name: str) -> None:
        self._default = list(step.buckets)
        self._planning = Planning(step, name)
        self._starts = StepStarts()
        self._run: StepRun | None = None
        self._came_s = 0.0
        self._clock, self._departure = StepClock(), Departure()
        self._is_merged = step.configuration.select_over == "group"
        self._listen(step)

    @property
    def plan(self) -> GroupPlan | None:  # type: ignore[override]
        """Return what was measured and decided; None until it is."""
        return self._planning.plan

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
            ledger.begin(TIMING)
        try:
            with ledger.waiting():
                plan = planning.next(owner.messenger, owner.limit_s, was_good=was_good)
        except ExchangeTimeout as error:
            raise owner.explain(error) from error
        finally:
            if is_due:
                ledger.end(TIMING)
        if plan is not None:
            owner.step.spans.remove(self._listener)
            owner.step.regroup_at_start(plan.buckets(owner.step.specs))
            self._clock.restart()
            self._departure.restart()

    def _watch_step(self, owner: Owner, position: int | None) -> None:
        """Begin a step that has a plan; where steps have departed from it, measure anew.

        Collective where a window of steps has ended: nothing of this compressor is under way.
        """
        self._starts.begins(position)
        departure, ledger = self._departure, owner.watchdog.ledger
        departure.begin(self._clock.begin())
        if not departure.is_due:
            return
        name = f"hvd_sparse.plan.{owner.name}.review"
        gatherer = Gatherer(owner.collective, name, owner.limit_s)
        ledger.begin(TIMING)
        try:
            with ledger.waiting():
                slowest_s = max(gatherer.tell_all(departure.median_s))
        except ExchangeTimeout as error:
            raise owner.explain(error) from error
        finally:
            ledger.end(TIMING)
        if departure.judge(slowest_s):
            if owner.collective.rank == 0:
                logger.warning(
                    "compressor %s: steps take %.1f ms, and %.1f ms when their groups were "
                    "planned: the groups are planned anew",
                    owner.name,
                    1e3 * slowest_s,
                    1e3 * (departure.first_s or 0.0),
                )
            self._planning.restart()
            self._run = None
            self._listen(owner.step)
        self._clock.resume()

    def sent(self, owner: Owner, position: int, ticket: Ticket) -> None:
        """Note what a tensor sends, as it will be behind a schedule's warm-up."""
        if self._planning.is_over:
            return
        self._run = ticket.run
        if ticket.outgoing is not None and ticket.state is not None:
            spec, configuration = owner.step.specs[position], owner.configuration
            nbytes = expected_bytes(configuration, spec.numel, spec)
            frame = ticket.outgoing.frame
            if frame is not None:  # else this step of it runs dense, or the exchange makes it
                now = configuration.density(ticket.state.steps, spec)
                later, nbytes = configuration.density(LONG_RUN, spec), frame.nbytes
                if now and later and now != later:
                    numel = spec.numel
                    nbytes *= count_from_density(numel, later) / count_from_density(numel, now)
            self._planning.measurements.send(spec.key, nbytes)
        measurements, own_s = self._planning.measurements, time.perf_counter() - self._came_s
        told_s = measurements.take_told()
        # Of a group that is selected from at once, what each tensor takes whatever the groups are
        # counts as the backward pass.
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

    def regrouped(self, owner: Owner, groups: object) -> None:
        """Measure anew where groups are "planned" again; anything else ends measuring."""
        owner.step.spans.remove(self._listener)
        self._starts = StepStarts()
        if groups == PLANNED:
            self._planning.restart()
            self._listen(owner.step)
        else:
            self._planning.stop()

    def forget_world(self, owner: Owner) -> None:
        owner.step.regroup_at_start(self._default)  # new workers know of no plan
        owner.step.spans.remove(self._listener)
        self._planning.restart()
        self._starts, self._run = StepStarts(), None
        self._listen(owner.step)
