"""Groups that are planned in runs of graphs, which are given them when they are traced."""

from __future__ import annotations

import threading
import time
import weakref
from typing import Any, cast

from hvd_sparse.plan.group_plan import GroupPlan
from hvd_sparse.plan.measuring_policy import MeasuringPolicy
from hvd_sparse.plan.planned_groups import PlannedGroups
from hvd_sparse.plan.policy import Owner
from hvd_sparse.step.records import Ticket


class GraphPlannedGroups(PlannedGroups):
    """Measures the first steps, in which every gradient travels alone, and then plans groups.

    A graph's gradients come in any thread, and results of some may be there before others
    have come: so the program says where a step begins (``replan``), outside its graphs, and there
    the ranks come together.

    Parameters
    ----------
    owner : the compressor, whose step is made

    Attributes
    ----------
    groups : names of the tensors of each group; None while nothing is planned
    """

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.step, owner.name)
        self._owner = weakref.ref(cast(Any, owner))
        self._lock = threading.Lock()
        self.groups: tuple[tuple[str, ...], ...] | None = None

    def replan(self) -> bool:
        """Begin a step, and tell whether the groups are others than before.  Collective."""
        before = self.groups
        self._starts.end()
        self.begin(self._compressor(), None)
        return self.groups != before

    def took(self, position: int, ticket: Ticket, came_s: float) -> None:
        """Note a gradient that has come, and what it sends."""
        if self._planning.is_over:
            return
        owner, measurements = self._compressor(), self._planning.measurements
        with self._lock:
            measurements.came_first(came_s)
            measurements.arrive(owner.step.specs[position].key, came_s)
            self._came_s = came_s
            self.sent(owner, position, ticket)

    def returned(self) -> None:
        """Note that a result is there."""
        with self._lock:
            self.arrived(self._compressor())

    def _compressor(self) -> Owner:
        owner = self._owner()
        assert owner is not None  # who calls has it
        return cast(Owner, owner)

    def _adopt(self, owner: Owner, decision: GroupPlan) -> None:
        self.groups = decision.groups

    def _measure_anew(self, owner: Owner) -> None:
        self.groups = None  # what is measured is every tensor by itself
        super()._measure_anew(owner)

    def forget_world(self, owner: Owner) -> None:
        MeasuringPolicy.forget_world(self, owner)


def now_s() -> float:
    """Return the seconds of the clock that measurements are made by."""
    return time.perf_counter()
