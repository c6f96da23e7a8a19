"""``groups="planned"`` for TensorFlow graphs, which receive their groups when traced."""

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
    """Policy that measures the first steps with one message per gradient, then plans groups.

    A graph's gradients arrive in any thread, and some results before other gradients, so the start
    of a step cannot be detected.  The program therefore calls ``replan`` at the start of every
    step, outside its graphs.

    Parameters
    ----------
    owner : the compressor, with its step already created

    Attributes
    ----------
    groups : names of the tensors of each group; None before there is a plan
    """

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner.step, owner.name)
        self._owner = weakref.ref(cast(Any, owner))
        self._lock = threading.Lock()
        self.groups: tuple[tuple[str, ...], ...] | None = None

    def replan(self) -> bool:
        """Begin a step, and return whether the groups have changed.  Collective."""
        before = self.groups
        self._starts.end()
        self.begin(self._compressor(), None)
        return self.groups != before

    def took(self, position: int, ticket: Ticket, came_s: float) -> None:
        """Record a gradient that arrived at ``came_s``, and its message."""
        if self._planning.is_over:
            return
        owner, measurements = self._compressor(), self._planning.measurements
        with self._lock:
            measurements.came_first(came_s)
            measurements.arrive(owner.step.specs[position].key, came_s)
            self._came_s = came_s
            self.sent(owner, position, ticket)

    def returned(self) -> None:
        """Record a result."""
        with self._lock:
            self.arrived(self._compressor())

    def _compressor(self) -> Owner:
        owner = self._owner()
        assert owner is not None  # the caller holds it
        return cast(Owner, owner)

    def _adopt(self, owner: Owner, decision: GroupPlan) -> None:
        self.groups = decision.groups

    def _measure_anew(self, owner: Owner) -> None:
        self.groups = None  # measure one message per tensor
        super()._measure_anew(owner)

    def forget_world(self, owner: Owner) -> None:
        MeasuringPolicy.forget_world(self, owner)


def now_s() -> float:
    """Return the time of the clock that measurements use, in seconds."""
    return time.perf_counter()
