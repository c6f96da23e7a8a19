"""Policy of ``groups="planned"``: groups that are planned from the first steps of a run."""

from __future__ import annotations

from collections.abc import Sequence

from hvd_sparse.compatibility import PLANNED
from hvd_sparse.plan.first_steps import FirstSteps
from hvd_sparse.plan.group_plan import GroupPlan, make_plan
from hvd_sparse.plan.measurements import Samples, StepStarts, Told
from hvd_sparse.plan.measuring_policy import MeasuringPolicy
from hvd_sparse.plan.policy import Owner
from hvd_sparse.plan.route import Route
from hvd_sparse.step.step import Step


class Planning(FirstSteps[GroupPlan]):
    """The first steps, from which groups are planned."""

    label, purpose, option = "plan", "plan the groups", "groups='planned'"

    def _make(self, route: Route, told: Sequence[Told], samples: Sequence[Samples]) -> GroupPlan:
        return make_plan(route, self._step.specs, told, samples, self._step.buckets)

    def _read(self, told: Told) -> GroupPlan:
        return GroupPlan.from_dict(told)


class PlannedGroups(MeasuringPolicy):
    """Policy that measures the first steps, then uses the groups with the shortest predicted step.

    Until then small adjacent tensors share a message, as by default.

    Parameters
    ----------
    step : the compressor's step
    name : name of the compressor
    """

    timing = "the timing of messages for groups='planned'"
    departed = "their groups were planned: the groups are planned anew"

    def __init__(self, step: Step, name: str) -> None:
        self._default = list(step.buckets)
        super().__init__(step, Planning(step, name))

    @property
    def plan(self) -> GroupPlan | None:  # type: ignore[override]
        """The planned groups and the measured costs; None before the decision."""
        plan: GroupPlan | None = self._planning.plan
        return plan

    def _adopt(self, owner: Owner, decision: GroupPlan) -> None:
        owner.step.regroup_at_start(decision.buckets(owner.step.specs))

    def regrouped(self, owner: Owner, groups: object) -> None:
        """Measure again if the new groups are "planned"; otherwise stop measuring."""
        owner.step.spans.remove(self._listener)
        self._starts = StepStarts()
        if groups == PLANNED:
            self._planning.restart()
            self._listen(owner.step)
        else:
            self._planning.stop()

    def forget_world(self, owner: Owner) -> None:
        owner.step.regroup_at_start(self._default)  # new workers have no plan
        super().forget_world(owner)
