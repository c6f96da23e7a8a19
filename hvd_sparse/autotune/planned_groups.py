"""Measuring the first steps of a run, and then one plan of rank 0's for all:
``groups="planned"``."""

from __future__ import annotations

import logging
import time
from typing import Any

from hvd_sparse.autotune.group_plan import GroupPlan, make_plan
from hvd_sparse.autotune.measurements import STEPS, WARMUP, Measurements, sizes_of, time_messages
from hvd_sparse.autotune.route import Route
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.collectives.topology import in_nodes_of
from hvd_sparse.core.step.step import Step
from hvd_sparse.errors import PeerFailure
from hvd_sparse.resilience.gathering import Gatherer

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
        self._step, self._name, self._default = step, name, list(step.buckets)
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
        """Whether the step that begins is one at which all ranks come together."""
        measured = self._steps - WARMUP
        return measured > 0 and measured % STEPS == 0

    def next(
        self, collective: Collective, timeout_s: float | None, *, was_good: bool
    ) -> GroupPlan | None:
        """A step begins, on all ranks: the plan, at the step that adopts it.  Collective where
        ``is_due``.

        was_good : the last step ended well
        """
        is_counted = was_good and self._steps > WARMUP
        if self.is_due:
            self.measurements.begin(0.0, was_good=is_counted)
            self.plan = self._agree(collective, timeout_s)
            is_counted = False
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

    def _decide(self, route: Route, told: Any, samples: Any) -> dict[str, Any]:
        """Rank 0's; in words what went wrong, as the other ranks wait."""
        try:
            plan = make_plan(route, self._step.specs, told, samples, self._default)
        except Exception as error:
            return {"failure": f"{type(error).__name__}: {error}"}
        return plan.to_dict()
