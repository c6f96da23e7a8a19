"""The timeline of a step under a plan: the times of every group's computing and message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hvd_sparse.autotune.costmodel.instance import Instance, Plan, check_plan

ROUNDING = 1e-12


@dataclass(frozen=True)
class Span:
    """The times of one group, in seconds after the start of the backward pass.

    Attributes
    ----------
    start, stop : its layers, [start, stop)
    ready_s : time at which its last gradient is there and selected from
    sends_s, sent_s : times at which its message enters and leaves the wire
    """

    start: int
    stop: int
    ready_s: float
    sends_s: float
    sent_s: float


@dataclass(frozen=True)
class Timeline:
    """The times of all groups of a step, in seconds.

    Attributes
    ----------
    spans : the groups, in the order of the backward pass
    compute_s : end of the backward pass and the selections
    wire_s : end of the last group's first collective
    end_s : end of the late collectives too, by which plans are compared
    """

    spans: tuple[Span, ...]
    compute_s: float
    wire_s: float
    end_s: float

    @property
    def waiting_s(self) -> float:
        """Return the seconds of communication that nothing hides."""
        return self.end_s - self.compute_s

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able."""
        return asdict(self)


def evaluate(instance: Instance, plan: Sequence[int]) -> Timeline:
    """Return the times of every group of a plan.

    Raises
    ------
    InvalidOption
        If the plan does not fit the instance.

    Notes
    -----
    The compute stream and the wire are those of the model of shi2020mgs; late collectives are ours.
    Cost: linear in the number of groups.
    """
    columns, end = _walk(instance, check_plan(plan, instance.size))
    spans = tuple(Span(*row) for row in zip(*(values.tolist() for values in columns)))
    return Timeline(spans, spans[-1].ready_s, spans[-1].sent_s, end)


def end_s(instance: Instance, plan: Sequence[int]) -> float:
    """Return ``evaluate(instance, plan).end_s`` without the rest."""
    return _walk(instance, check_plan(plan, instance.size))[-1]


def simplified(instance: Instance, plan: Sequence[int]) -> Plan:
    """Return the plan with groups joined wherever the step does not end later.

    Cost: quadratic in the number of groups.
    """
    ends = list(check_plan(plan, instance.size))
    # Rounding may differ between two sums of the same numbers.
    limit_s = _walk(instance, ends)[-1] * (1 + ROUNDING)
    position = len(ends) - 2
    while position >= 0:
        shorter = ends[:position] + ends[position + 1 :]
        if _walk(instance, shorter)[-1] <= limit_s:
            ends = shorter
        position -= 1
    return tuple(ends)


Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _walk(instance: Instance, ends: Sequence[int]) -> tuple[Columns, float]:
    """Return starts, stops, ready_s, sends_s and sent_s of all groups, and the step's end."""
    stops = np.array(ends)
    starts = np.concatenate([[0], stops[:-1]])
    ready_s = np.cumsum(instance.compute_s(starts, stops))
    takes_s = instance.wire_s(starts, stops)
    before_s = np.cumsum(takes_s) - takes_s
    # sends(i) = max(sent(i - 1), ready(i)), solved for all i at once
    sends_s = np.maximum.accumulate(ready_s - before_s) + before_s
    sent_s = sends_s + takes_s
    late_s = float(np.sum(instance.late_s(starts, stops)))
    return (starts, stops, ready_s, sends_s, sent_s), float(sent_s[-1]) + late_s
