"""The fastest plan, by dynamic programming over the ends of groups."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hvd_sparse.plan.costmodel.ends import end_s, simplified
from hvd_sparse.plan.costmodel.instance import Instance, Plan

EFFORT = 10_000_000
"""Bound on the total extensions of states: about a second for 1,000 layers."""

SWEEP = 256
"""Number of intervals in the quick removal of dominated states."""

ROUNDING = 1e-9


@dataclass
class _States:
    """States at boundaries between groups: ends of compute and wire, number of groups, boundary,
    and the index of the previous state."""

    compute_s: np.ndarray
    wire_s: np.ndarray
    groups: np.ndarray
    boundary: np.ndarray
    parent: np.ndarray

    def take(self, chosen: np.ndarray) -> _States:
        """Return the states at the chosen positions."""
        return _States(*(values[chosen] for values in vars(self).values()))

    def joined(self, other: _States) -> _States:
        """Return these states followed by others."""
        return _States(
            *(np.concatenate(pair) for pair in zip(vars(self).values(), vars(other).values()))
        )


def best_plan(instance: Instance, *, front_limit: int | None = None) -> Plan:
    """Return the plan whose step ends earliest, with as few groups as possible.

    A state at a boundary is (compute end, wire end, number of groups).  Adding a group is monotone
    in all three, so a state that another one dominates can be dropped.  A state can also be dropped
    if a single message with all remaining layers would end after the best simple plan (one layer
    per group, one group, or groups of equal size in bytes).  The number of groups only matters with
    late collectives.  If tensors are selected one by one, all states of a boundary have the same
    compute end, and few remain.

    Parameters
    ----------
    instance : layers and costs
    front_limit : largest number of states at a boundary; None allows about ten million extensions
        in total.  Above it, only the state with the lowest bound in each of ``front_limit``
        intervals is kept; the plan may then be slightly slower than the best, but not than the
        simple plans

    Notes
    -----
    Departs from shi2020mgs, whose greedy choice is not optimal (docs/adr/0019-planner.md).
    Cost: (layers * front)^2 / 2 additions at worst, usually far fewer.
    """
    if front_limit is None:
        front_limit = _default_limit(instance)
    bounds = _Bounds(instance)
    simple = _quickest(instance, simple_plans(instance))
    limit_s = end_s(instance, simple) * (1 + ROUNDING)
    none = np.zeros(1, np.int64)
    pool = _States(np.zeros(1), np.zeros(1), none, none, none)
    for stop in range(1, instance.size + 1):
        states = _extended(instance, pool, stop)
        lower_s = bounds(states, stop)
        possible = np.flatnonzero(lower_s <= limit_s)
        states, lower_s = states.take(possible), lower_s[possible]
        kept = _front(states)
        if kept.size > front_limit:
            kept = _thinned(states.take(kept), lower_s[kept], kept, front_limit)
        pool = pool.joined(states.take(kept))
    found = [_walk_back(pool, instance)] if pool.boundary[-1] == instance.size else []
    return simplified(instance, _quickest(instance, [*found, simple]))


def simple_plans(instance: Instance) -> list[Plan]:
    """Return plans of one layer per group, of one group, and of groups of about equal bytes.

    The last are plans of groups of 1 / 2, 1 / 4, ..., 1 / 2**23 of all bytes.
    """
    sizes = (instance.nbytes + instance.late_nbytes).tolist()
    plans: list[Plan] = [tuple(range(1, instance.size + 1)), (instance.size,)]
    for power in range(1, 24):
        ends, filled = [], 0.0
        for stop, nbytes in enumerate(sizes, 1):
            filled += nbytes
            if filled >= sum(sizes) / 2**power or stop == instance.size:
                ends.append(stop)
                filled = 0.0
        plans.append(tuple(ends))
    return plans


def _quickest(instance: Instance, plans: Iterable[Plan]) -> Plan:
    """Return the fastest plan; of equally fast ones the one with the fewest groups."""
    return min(plans, key=lambda plan: (round(end_s(instance, plan), 12), len(plan)))


def _default_limit(instance: Instance) -> int:
    """Return the default ``front_limit``, halved if states differ in the number of groups."""
    has_levels = instance.late.start_s > 0 and not instance.per_tensor
    effort = EFFORT // 2 if has_levels else EFFORT
    return max(4, effort // instance.size**2)


def _extended(instance: Instance, pool: _States, stop: int) -> _States:
    """Return all states extended by one group that ends at ``stop``."""
    starts = np.arange(stop)
    own = pool.boundary
    # Use one sum for all states: sums in other orders differ in the last bits, and none of these
    # states would dominate another.
    if instance.per_tensor:
        compute_s = np.full(own.size, instance.compute_s(0, stop))
    else:
        compute_s = pool.compute_s + instance.compute_s(starts, stop)[own]
    wire_s = np.maximum(pool.wire_s, compute_s) + instance.wire_s(starts, stop)[own]
    groups = pool.groups + (1 if instance.late.start_s > 0 else 0)
    return _States(compute_s, wire_s, groups, np.full(own.size, stop), np.arange(own.size))


class _Bounds:
    """Lower bounds of the end of a step, by state."""

    def __init__(self, instance: Instance) -> None:
        self._instance = instance
        size, call_s = instance.size, instance.select.start_s
        alone_s = instance.compute_s(np.arange(size), np.arange(1, size + 1))
        # A merged selection has one start-up cost, and otherwise costs as much as separate ones.
        if not instance.per_tensor:
            alone_s = alone_s - call_s
        self._compute_s = np.concatenate([np.cumsum(alone_s[::-1])[::-1], [0.0]])
        self._call_s = 0.0 if instance.per_tensor else call_s

    def __call__(self, states: _States, stop: int) -> np.ndarray:
        instance = self._instance
        lower_s: np.ndarray = states.wire_s
        if stop < instance.size:
            last_s = instance.wire_s(instance.size - 1, instance.size)
            computed_s = states.compute_s + self._compute_s[stop] + self._call_s
            rest_s = instance.wire_s(stop, instance.size)
            # The wire must send all remaining bytes, and the last layer's message follows all
            # computation.
            lower_s = np.maximum(lower_s + rest_s, computed_s + last_s) + instance.late.start_s
        late_s: np.ndarray = instance.late.start_s * states.groups
        lower_s = lower_s + late_s + instance.late.byte_s * float(np.sum(instance.late_nbytes))
        return lower_s


def _front(states: _States) -> np.ndarray:
    """Return the positions of the states that no other state dominates.

    If states differ in all three numbers, they are only compared with states of as many groups,
    which keeps more states but needs a single sweep.
    """
    along, level = states.compute_s, states.groups
    if along.size and np.ptp(along) == 0.0:
        along, level = states.groups.astype(float), np.zeros_like(states.groups)
    has_levels = bool(level.size) and np.ptp(level) > 0
    candidates = np.arange(along.size) if has_levels else _not_behind(along, states.wire_s)
    along, level, wire_s = along[candidates], level[candidates], states.wire_s[candidates]
    order = np.lexsort((wire_s, along, level))
    wire_s, level = wire_s[order], level[order]
    if has_levels:  # shift every level below the one before, to restart the running minimum
        wire_s = wire_s - 2.0 * float(np.max(wire_s)) * (level - level[0])
    below = np.minimum.accumulate(np.concatenate([[np.inf], wire_s]))[:-1]
    front: np.ndarray = candidates[order[wire_s < below]]
    return front


def _not_behind(along: np.ndarray, wire_s: np.ndarray) -> np.ndarray:
    """Return the positions of the states that no state of an earlier interval dominates.

    This drops most states before the others are sorted.
    """
    stretch = _stretches(along, SWEEP)
    least = np.full(SWEEP + 1, np.inf)
    np.minimum.at(least, stretch + 1, wire_s)
    return np.flatnonzero(wire_s < np.minimum.accumulate(least)[stretch])


def _stretches(values: np.ndarray, count: int) -> np.ndarray:
    """Return the index of each value's interval, of ``count`` equal ones from least to largest."""
    if not values.size:
        return np.empty(0, np.int64)
    width = max(float(np.ptp(values)) / count, 1e-300)
    stretch: np.ndarray = np.minimum((values - values.min()) / width, count - 1).astype(np.int64)
    return stretch


def _thinned(states: _States, lower_s: np.ndarray, positions: np.ndarray, limit: int) -> np.ndarray:
    """Return the position of the state with the lowest bound in each of ``limit`` intervals.

    The intervals divide the compute ends, or if these are all equal the wire ends.
    """
    along = states.compute_s if np.ptp(states.compute_s) > 0 else states.wire_s
    stretch = _stretches(along, limit)
    order = np.lexsort((lower_s, stretch))
    first = np.concatenate([[True], np.diff(stretch[order]) > 0])
    chosen: np.ndarray = positions[order[first]]
    return chosen


def _walk_back(pool: _States, instance: Instance) -> Plan:
    """Return the plan of the best state at the last boundary."""
    ends = np.flatnonzero(pool.boundary == instance.size)
    final_s = pool.wire_s[ends] + instance.late.start_s * pool.groups[ends]
    position = int(ends[np.argmin(final_s)])
    plan: list[int] = []
    while pool.boundary[position] > 0:
        plan.append(int(pool.boundary[position]))
        position = int(pool.parent[position])
    return tuple(reversed(plan))
