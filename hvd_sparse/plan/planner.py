"""The groups of tensors with the shortest step, by dynamic programming over the ends of groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_sparse.plan.lines import Line, Numbers

EFFORT = 10_000_000
"""Bound on the total extensions of states: about a second for 1,000 layers."""
SWEEP = 256
"""Number of intervals in the quick removal of dominated states."""
ROUNDING = 1e-9

Plan = tuple[int, ...]
"""The end of each group of layers in backward order; for example, (2, 5) has the groups of layers 0
to 1 and 2 to 4."""


@dataclass(frozen=True, eq=False)
class Instance:
    """Layers in backward order, and the costs of groups of them.

    Selecting and encoding interrupt the backward pass, and messages are sent one after the other.
    A group is selected after its last gradient, and then sent:

        compute end of group [i, j) = compute end of the group before + backward of i..j-1 +
        compute_s(i, j)
        wire end of group [i, j)    = max(wire end of the group before, compute end) + wire_s(i, j)
        end of the step             = wire end of the last group + late_s of all groups

    Attributes
    ----------
    backward_s : float64 [layers], seconds of the backward pass from the last gradient to each
    numel : float64 [layers], entries
    nbytes : float64 [layers], bytes that a node receives in the exchange's first collective
    wire : cost of the first collective, as a line in these bytes
    select : cost of selecting and encoding, as a line in the entries of one selection
    per_tensor : whether each tensor of a group is selected when it is ready; if False, the group is
        selected as one vector
    late : cost of the collectives after the first, which start after the backward pass
    late_nbytes : float64 [layers], bytes that a node receives in these
    """

    backward_s: np.ndarray
    numel: np.ndarray
    nbytes: np.ndarray
    wire: Line
    select: Line = Line(0.0, 0.0)
    per_tensor: bool = True
    late: Line = Line(0.0, 0.0)
    late_nbytes: np.ndarray | float = 0.0

    def __post_init__(self) -> None:
        for name in ("backward_s", "numel", "nbytes", "late_nbytes"):
            values = np.zeros(len(self.backward_s)) + getattr(self, name)
            object.__setattr__(self, name, values)
            object.__setattr__(self, f"_{name}", np.concatenate([[0.0], np.cumsum(values)]))

    @property
    def size(self) -> int:
        """The number of layers."""
        return int(self.backward_s.size)

    def select_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of selecting and encoding the group [start, stop).

        Here and in the methods below, both may be int arrays [groups].
        """
        entries_s = self.select.byte_s * self._between("_numel", start, stop)
        return entries_s + self.select.start_s * ((stop - start) if self.per_tensor else 1)

    def compute_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of the backward pass and the selection of a group."""
        return self._between("_backward_s", start, stop) + self.select_s(start, stop)

    def wire_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of a group's first collective."""
        return self.wire(self._between("_nbytes", start, stop))

    def late_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of a group's collectives after the first."""
        return self.late(self._between("_late_nbytes", start, stop))

    def _between(self, name: str, start: Numbers, stop: Numbers) -> Numbers:
        prefix = getattr(self, name)
        return prefix[stop] - prefix[start]


def groups(plan: Plan) -> list[tuple[int, int]]:
    """Return the range [start, stop) of every group's layers."""
    return list(zip((0, *plan[:-1]), plan))


def end_s(instance: Instance, plan: Sequence[int]) -> float:
    """Return the time at which the last message of a plan ends, in seconds.

    The model of the compute stream and the wire is that of shi2020mgs; late collectives are added.
    """
    stops = np.array(plan)
    starts = np.concatenate([[0], stops[:-1]])
    ready_s = np.cumsum(instance.compute_s(starts, stops))
    takes_s = instance.wire_s(starts, stops)
    before_s = np.cumsum(takes_s) - takes_s
    # Solve sends(i) = max(sent(i - 1), ready(i)) for all i.
    sends_s = np.maximum.accumulate(ready_s - before_s) + before_s
    late_s = float(np.sum(instance.late_s(starts, stops)))
    return float(sends_s[-1] + takes_s[-1]) + late_s


def simplified(instance: Instance, plan: Sequence[int]) -> Plan:
    """Return the plan with groups joined wherever this does not delay the end of the step."""
    ends = list(plan)
    # Sums of the same numbers may be rounded differently.
    limit_s = end_s(instance, ends) * (1 + 1e-12)
    position = len(ends) - 2
    while position >= 0:
        shorter = ends[:position] + ends[position + 1 :]
        if end_s(instance, shorter) <= limit_s:
            ends = shorter
        position -= 1
    return tuple(ends)


def partition_end_s(instance: Instance, parts: Sequence[Sequence[int]]) -> float:
    """Return the time at which the last message ends for any partition into groups, in seconds.

    Messages are sent in the order in which they become ready.  All messages that are ready when the
    wire is free are sent as one, like Horovod's fusion.  Late collectives start when all messages
    are ready.
    """
    complete = {max(part): list(part) for part in parts}
    compute_s, messages = 0.0, []
    for layer in range(instance.size):
        if instance.per_tensor:
            compute_s += float(instance.compute_s(layer, layer + 1))
        else:
            compute_s += float(instance.backward_s[layer])
        part = complete.get(layer)
        if part is None:
            continue
        if not instance.per_tensor:
            compute_s += float(instance.select(np.sum(instance.numel[part])))
        messages.append((compute_s, float(np.sum(instance.nbytes[part]))))
    wire_s, waiting = 0.0, 0
    while waiting < len(messages):
        start_s, first = max(wire_s, messages[waiting][0]), waiting
        while waiting < len(messages) and messages[waiting][0] <= start_s:
            waiting += 1
        wire_s = start_s + float(
            instance.wire(sum(nbytes for _, nbytes in messages[first:waiting]))
        )
    late_s = float(instance.late(np.sum(instance.late_nbytes)))
    return max(wire_s, compute_s) + late_s


@dataclass
class _States:
    """States at boundaries between groups: ends of compute and wire, number of groups, boundary,
    and index of the previous state."""

    compute_s: np.ndarray
    wire_s: np.ndarray
    groups: np.ndarray
    boundary: np.ndarray
    parent: np.ndarray

    def take(self, chosen: np.ndarray) -> _States:
        return _States(*(values[chosen] for values in vars(self).values()))

    def joined(self, other: _States) -> _States:
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

    The last have groups of 1 / 2, 1 / 4, ..., 1 / 2**23 of all bytes.
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
    """Return the position of the state with the lowest bound in each of ``limit`` intervals, of the
    compute ends, or if these are all equal of the wire ends."""
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
