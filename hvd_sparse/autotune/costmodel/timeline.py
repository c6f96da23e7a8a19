"""A step under a plan: when each group is computed, and when it is on the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hvd_sparse.autotune.costmodel.instance import Instance, Plan, check_plan

ROUNDING = 1e-12


@dataclass(frozen=True)
class Span:
    """One group; seconds after the start of the backward pass.

    Attributes
    ----------
    start, stop : its layers, [start, stop)
    ready_s : its last gradient is there and selected from
    sends_s, sent_s : its message enters and leaves the wire
    """

    start: int
    stop: int
    ready_s: float
    sends_s: float
    sent_s: float


@dataclass(frozen=True)
class Timeline:
    """All groups of a step.

    Attributes
    ----------
    spans : in the order of the backward pass
    compute_s : when backward pass and selections are over
    wire_s : when the last first collective is over
    end_s : when the late collectives are over too: what plans are compared by
    """

    spans: tuple[Span, ...]
    compute_s: float
    wire_s: float
    end_s: float

    @property
    def waiting_s(self) -> float:
        """Communication that nothing hides."""
        return self.end_s - self.compute_s

    def to_dict(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def evaluate(instance: Instance, plan: Sequence[int]) -> Timeline:
    """When every group of a plan is computed and sent; InvalidOption for a plan that does not fit
    the instance.

    Compute stream and wire are those of the model of shi2020mgs; late collectives are ours.
    Cost: linear in the number of groups.
    """
    starts, stops, ready_s, sends_s, sent_s, end = _walk(instance, check_plan(plan, instance.size))
    columns = (values.tolist() for values in (starts, stops, ready_s, sends_s, sent_s))
    spans = tuple(Span(*row) for row in zip(*columns))
    return Timeline(spans, spans[-1].ready_s, spans[-1].sent_s, end)


def end_s(instance: Instance, plan: Sequence[int]) -> float:
    """``evaluate(instance, plan).end_s``, and no more."""
    return _walk(instance, check_plan(plan, instance.size))[-1]


def simplified(instance: Instance, plan: Sequence[int]) -> Plan:
    """The plan with every group joined to the next where the step does not end later: quick plans
    need not be unique.

    Cost: quadratic in the number of groups.
    """
    ends = list(check_plan(plan, instance.size))
    limit_s = _walk(instance, ends)[-1] * (1 + ROUNDING)
    position = len(ends) - 2
    while position >= 0:
        shorter = ends[:position] + ends[position + 1 :]
        if _walk(instance, shorter)[-1] <= limit_s:
            ends = shorter
        position -= 1
    return tuple(ends)


def _walk(instance: Instance, ends: Sequence[int]) -> tuple[Any, Any, Any, Any, Any, float]:
    stops = np.array(ends)
    starts = np.concatenate([[0], stops[:-1]])
    ready_s = np.cumsum(instance.compute_s(starts, stops))
    takes_s = instance.wire_s(starts, stops)
    before_s = np.cumsum(takes_s) - takes_s
    # sends(i) = max(sent(i - 1), ready(i)), solved for all i at once
    sends_s = np.maximum.accumulate(ready_s - before_s) + before_s
    sent_s = sends_s + takes_s
    late_s = float(np.sum(instance.late_s(starts, stops)))
    return starts, stops, ready_s, sends_s, sent_s, float(sent_s[-1]) + late_s
