"""Ways to merge layers, beside each other: none, all, the published rule, MGS-SGD and our default.

Two compressors of exact top-k are regrouped between the steps: one selects from every tensor by
itself, as WFBP and our default do; the other once from every group, as merged layers do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.network.methods import Method, Named, create
from benchmarks.network.spans import Spans
from hvd_sparse.autotune.costmodel.costs import Line, Work
from hvd_sparse.autotune.costmodel.instance import Instance, groups
from hvd_sparse.autotune.costmodel.strategies import greedy
from hvd_sparse.autotune.group_plan import GroupPlan
from hvd_sparse.autotune.route import route_of

CODEC = "codec=block16"
MGS, ALL, GREEDY, WFBP, DEFAULT = "mgs", "all", "greedy", "wfbp", "default"
WAYS = (MGS, ALL, GREEDY, WFBP, DEFAULT)
"""The first measures and plans, before any other has a step."""
APART = 1_000_000
"""More messages than any model has tensors."""


class Regrouped:
    """A compressor, and the groups that its tensors travel in now."""

    def __init__(self, spec: str, named: Named, density: float, spans: Spans, groups: Any) -> None:
        self.method = create(spec, named, density, spans)
        self._current = groups

    @property
    def compressor(self) -> Any:
        return self.method.compression.inner

    def turn_to(self, groups: Any) -> None:
        """Take other groups before a step, on all ranks."""
        if groups != self._current:
            self.compressor.regroup(groups)
            self._current = groups

    def has(self, groups: Any) -> None:
        """Note the groups that it has taken by itself."""
        self._current = groups

    @property
    def messages(self) -> int:
        """Number of messages of a step."""
        return len(self.compressor.step.buckets)


class Merging:
    """Both compressors, and the groups of every way.

    Parameters
    ----------
    named : the parameters, by name
    ready_s : seconds from the backward pass's start to each one's gradient
    """

    def __init__(
        self, named: Named, ready_s: Sequence[float], density: float, spans: Spans
    ) -> None:
        self._ready_s = ready_s
        self.merged = Regrouped(f"mgs,{CODEC}", named, density, spans, "planned")
        self.apart = Regrouped(f"topk,{CODEC}", named, density, spans, None)
        self._groups: dict[str, Any] = {MGS: "planned", ALL: 1, WFBP: APART, DEFAULT: None}
        self.plan: GroupPlan | None = None
        self.messages: dict[str, int] = {}

    def of(self, way: str) -> Regrouped:
        return self.apart if way in (WFBP, DEFAULT) else self.merged

    def turn_to(self, way: str) -> None:
        self._take_plan()
        self.of(way).turn_to(self._groups[way])
        self.messages[way] = self.of(way).messages

    def _take_plan(self) -> None:
        """Keep the plan that the run has made, as regrouping forgets it."""
        if self.plan is not None or self.merged.compressor.plan is None:
            return
        self.plan = self.merged.compressor.plan
        planned = [list(names) for names in self.plan.groups]
        self._groups |= {MGS: planned, GREEDY: self._by_published_rule(self.plan)}
        self.merged.has(planned)

    def _by_published_rule(self, plan: GroupPlan) -> list[list[str]]:
        """Return the groups that the paper's greedy rule makes of the plan's measured costs."""
        inner = self.merged.compressor
        route = route_of(inner.configuration, inner.collective)
        is_sparse = inner.configuration.is_sparse
        layers = sorted(
            (ready_s, -position, spec)
            for position, (ready_s, spec) in enumerate(zip(self._ready_s, inner.step.specs))
            if is_sparse(spec.shape, spec.numel)
        )
        specs = [spec for _, _, spec in layers]
        instance = Instance(
            np.diff([ready_s for ready_s, _, _ in layers], prepend=0.0),
            np.array([spec.numel for spec in specs]),
            np.zeros(len(specs)),
            np.array([route.received(spec.numel, 0.0)[0] for spec in specs]),
            Line(plan.wire.start_s, plan.wire.byte_s),
            Work(call_s=plan.work.start_s, entry_s=plan.work.byte_s),
            per_tensor=False,
        )
        return [[spec.key for spec in specs[a:b]] for a, b in groups(greedy(instance))]


class MergedWay(Method):
    """One of ``WAYS``, as a method."""

    def __init__(self, shared: Merging, way: str) -> None:
        self._shared, self._way = shared, way
        method = shared.of(way).method
        self.submit, self.finish = method.submit, method.finish

    def begin(self) -> None:
        self._shared.turn_to(self._way)

    @property
    def is_settled(self) -> bool:
        return self._shared.plan is not None or self._shared.merged.compressor.plan is not None

    def report(self) -> dict[str, Any]:
        plan = self._shared.plan
        planned = {} if plan is None else {"wire": vars(plan.wire), "work": vars(plan.work)}
        return {"messages": self._shared.messages[self._way], **planned}


def create_merged_ways(
    named: Named, ready_s: Sequence[float], density: float, spans: Spans
) -> dict[str, MergedWay]:
    """Return all ways by name, in the order in which they are to be warmed up."""
    shared = Merging(named, ready_s, density, spans)
    return {way: MergedWay(shared, way) for way in WAYS}
