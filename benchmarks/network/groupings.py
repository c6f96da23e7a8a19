"""One compressor whose groups are planned in the run, and the same one with other groups."""

from __future__ import annotations

from typing import Any

from benchmarks.network.methods import Method, Named, create
from benchmarks.network.spans import Spans

OURS = "ldte_bs,codec=block16"
PLANNED = "planned"
GROUPS: dict[str, Any] = {"none": 1_000_000, "all": 1, "default": None}
"""By the names of ``GroupPlan.predicted_s``: what ``regroup`` is given."""
WAYS = (PLANNED, *GROUPS)
"""The first is measured before any other has a step."""


class Planned:
    """The optimizer, its compressor, and the plan of its first steps, which all groupings share."""

    def __init__(self, named: Named, density: float, spans: Spans) -> None:
        self.method = create(f"{OURS},groups={PLANNED}", named, density, spans)
        self.plan: Any = None
        self._current = PLANNED

    @property
    def compressor(self) -> Any:
        return self.method.compression.inner

    def turn_to(self, way: str) -> None:
        """Change to a grouping before a step, on all ranks."""
        self.plan = self.plan or self.compressor.plan
        if way != self._current:
            groups = [list(names) for names in self.plan.groups] if way == PLANNED else GROUPS[way]
            self.compressor.regroup(groups)
            self._current = way


class Way(Method):
    """One grouping of ``WAYS``, as a method."""

    def __init__(self, shared: Planned, way: str) -> None:
        self._shared, self._way = shared, way
        self.submit, self.finish = shared.method.submit, shared.method.finish

    def begin(self) -> None:
        self._shared.turn_to(self._way)

    @property
    def is_settled(self) -> bool:
        return self._shared.plan is not None or self._shared.compressor.plan is not None

    def report(self) -> dict[str, Any]:
        return {"plan": self._shared.plan.to_dict()}


def create_ways(named: Named, density: float, spans: Spans) -> dict[str, Way]:
    """Return all groupings by name, in the order in which they are to be warmed up."""
    shared = Planned(named, density, spans)
    return {way: Way(shared, way) for way in WAYS}
