"""Decisions from the measurements of all ranks: the groups of MGS-SGD (``groups="planned"``), and
the densities of LAGS-SGD (``density="hiding"``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.plan.costs import Buckets, Costs, Line, Numbers, restricted
from hvd_sparse.step.buckets import why_not_merged
from hvd_sparse.types import State, TensorSpec

WAYS = ("none", "all", "default", "planned")
EFFORT = 50_000_000
"""Upper bound of layers^2 * groups in the search for a plan, which limits the number of groups of
more than 368 layers. The search takes about a second."""

GRID = 48
"""Number of steps of the logarithmic grid of densities. With the grid, rounding errors cannot
change a chosen density."""


@dataclass(frozen=True)
class GroupPlan:
    """The planned groups (``compressor.plan``) and measured costs, the same on all ranks.

    Attributes
    ----------
    groups : names of the tensors in each group; the tensors of a group share a message
    predicted_s : predicted seconds from a step's first gradient to its last result, for four
        groupings: "none" (one tensor per message), "all" (one message), "default" (the groups that
        were measured) and "planned". A constant is added to all four, so that "default" equals the
        measured time. If several optimizers step separately, their predicted times are added
    wire : seconds of a message, as a linear function of the bytes that a rank receives
    work : seconds of selecting and encoding, as a linear function of the number of entries of a
        tensor, or of a whole group with ``select_over="group"``
    decode : seconds of decoding, as a linear function of the number of entries of a tensor
    """

    label: ClassVar[str] = "plan"
    option: ClassVar[str] = "groups='planned'"

    groups: tuple[tuple[str, ...], ...]
    predicted_s: dict[str, float]
    wire: Line
    work: Line
    decode: Line

    @classmethod
    def make(cls, costs: Costs) -> GroupPlan:
        """Return the plan with the shortest predicted step. It may have the default groups, with
        which the steps were measured. All tensors of a group have gradients in the same steps."""
        specs = costs.specs
        predicted_s = dict.fromkeys(WAYS, 0.0)
        chosen: Buckets = []
        for keys in costs.families():
            buckets, ends_s = _plan_family(keys, costs)
            chosen += buckets
            # Add the time that the model does not predict, measured with the default groups.
            rest_s = max(0.0, costs.whole_s(keys[0]) - ends_s["default"])
            predicted_s = {way: total + ends_s[way] + rest_s for way, total in predicted_s.items()}
        planned = {position for bucket in chosen for position in bucket}
        chosen += restricted(costs.buckets, costs.compressed - planned)
        named = tuple(tuple(specs[position].key for position in bucket) for bucket in chosen)
        return cls(named, predicted_s, costs.wire, costs.work, costs.decode)

    @classmethod
    def from_dict(cls, told: State) -> GroupPlan:
        lines = {name: Line(**told[name]) for name in ("wire", "work", "decode")}
        return cls(tuple(map(tuple, told["groups"])), told["predicted_s"], **lines)

    def buckets(self, specs: Sequence[TensorSpec]) -> Buckets:
        positions = {spec.key: position for position, spec in enumerate(specs)}
        return [tuple(sorted(positions[name] for name in names)) for names in self.groups]

    def __str__(self) -> str:
        told = ", ".join(f"{way} {1e3 * each_s:.1f} ms" for way, each_s in self.predicted_s.items())
        most, start_s = max(map(len, self.groups), default=0), self.wire.start_s
        return (
            f"tensors are sent in {len(self.groups)} messages of at most {most} tensors "
            f"(predicted time of a step's exchange: {told}; a message takes {1e3 * start_s:.2f} "
            f"ms plus {1e9 * self.wire.byte_s:.2f} ns per received byte, selection and encoding "
            f"take {1e6 * self.work.start_s:.0f} us per selection plus "
            f"{1e9 * self.work.byte_s:.2f} ns per entry)"
        )


def _plan_family(keys: Sequence[str], costs: Costs) -> tuple[Buckets, dict[str, float]]:
    """Return the planned groups of tensors that have gradients in the same steps, and the predicted
    seconds of a step for each grouping in ``WAYS``."""
    specs, configuration = costs.specs, costs.configuration
    layers = costs.layers(keys)
    members = [specs[position] for position in layers]
    ready_s = [costs.ready_s[each.key] for each in members]
    # The seconds of dense tensors count for the next compressed tensor, or else for the last one.
    ready_s[-1] = max(costs.ready_s[key] for key in keys)
    group_s = costs.work.start_s if configuration.select_over == "group" else 0.0
    works_s = costs.work(np.array([each.numel for each in members])) + costs.encode_s - group_s
    instance = Instance(
        np.diff(ready_s, prepend=0.0) + works_s,
        np.array([costs.received(costs.nbytes[each.key]) for each in members]),
        costs.wire,
        group_s,
    )
    places = {position: place for place, position in enumerate(layers)}
    plan = best_plan(instance)
    planned = [tuple(sorted(layers[i:j])) for i, j in zip((0, *plan), plan)]
    buckets: dict[str, Buckets] = {
        "default": restricted(costs.buckets, places),
        "planned": _apart_where_needed(planned, specs, configuration),
        "all": _apart_where_needed([tuple(places)], specs, configuration),
        "none": [(position,) for position in places],
    }
    settle_s = sum(float(costs.decode(each.numel)) for each in members)
    ends_s = {
        way: settle_s
        + partition_end_s(instance, [[places[position] for position in part] for part in parts])
        for way, parts in buckets.items()
    }
    # The search tries only contiguous groups, and ignores that Horovod fuses messages.
    # Equal times differ in rounding: of these, prefer fewer messages.
    limit_s = min(ends_s.values()) * (1 + 1e-9)
    equal = [way for way in buckets if ends_s[way] <= limit_s]
    quickest = min(equal, key=lambda way: len(buckets[way]))
    return buckets[quickest], {**ends_s, "planned": ends_s[quickest]}


def _apart_where_needed(
    buckets: Buckets, specs: Sequence[TensorSpec], configuration: Configuration
) -> Buckets:
    """Split buckets whose tensors cannot be in one group into buckets of one tensor."""
    found: Buckets = []
    for bucket in buckets:
        cannot = why_not_merged([specs[position] for position in bucket], configuration)
        found += [(position,) for position in bucket] if cannot else [bucket]
    return found


class Instance:
    """The planning problem: layers in backward order, and the costs of groups, as in shi2020mgs.

    Selecting and encoding interrupt the backward pass, and messages are sent one after the other:

        compute end of group [i, j) = compute end of the group before + compute_s(i, j)
        wire end of group [i, j)    = max(wire end of the group before, compute end) + wire_s(i, j)

    layer_s : for each layer, seconds of the backward pass since the previous layer's gradient, plus
        seconds of selecting and encoding
    nbytes : bytes that a rank receives for each layer
    wire : seconds of a message, as a linear function of the bytes that a rank receives
    group_s : constant seconds of selecting from a group, if a group is one vector
    """

    def __init__(
        self, layer_s: ArrayLike, nbytes: ArrayLike, wire: Line, group_s: float = 0.0
    ) -> None:
        self.layer_s, self.nbytes = np.asarray(layer_s, np.float64), np.asarray(nbytes, np.float64)
        self.size, self.wire, self.group_s = self.layer_s.size, wire, group_s
        self._layer_sums, self._byte_sums = (
            np.concatenate([[0.0], np.cumsum(each)]) for each in (self.layer_s, self.nbytes)
        )

    def compute_s(self, start: Numbers, stop: Numbers) -> Numbers:
        """Return the seconds of backward pass, selecting and encoding of layers [start, stop)."""
        return self._layer_sums[stop] - self._layer_sums[start] + self.group_s

    def wire_s(self, start: Numbers, stop: Numbers) -> Numbers:
        return self.wire(self._byte_sums[stop] - self._byte_sums[start])


def partition_end_s(instance: Instance, parts: Sequence[Sequence[int]]) -> float:
    """Return the seconds from the start of a step to the end of its last message. ``parts`` has the
    layers of each group, which need not be neighbours. All messages that are ready when the network
    becomes free are sent as one, because Horovod fuses messages."""
    complete = {max(part): list(part) for part in parts}
    compute_s, messages = 0.0, []
    for layer, layer_s in enumerate(instance.layer_s.tolist()):
        compute_s += layer_s
        if layer in complete:
            compute_s += instance.group_s
            messages.append((compute_s, float(np.sum(instance.nbytes[complete[layer]]))))
    wire_s, waiting = 0.0, 0
    while waiting < len(messages):
        start_s, first = max(wire_s, messages[waiting][0]), waiting
        while waiting < len(messages) and messages[waiting][0] <= start_s:
            waiting += 1
        nbytes = sum(nbytes for _, nbytes in messages[first:waiting])
        wire_s = start_s + float(instance.wire(nbytes))
    return max(wire_s, compute_s)


def best_plan(instance: Instance) -> tuple[int, ...]:
    """Return the plan whose step ends earliest; of equally fast plans, one with the fewest groups.
    A plan has the first layer after each group: (2, 5) has the groups of layers 0 to 1 and 2 to 4.
    The search is a dynamic program over the boundaries of groups and the number of groups before
    them. shi2020mgs chooses greedily, which is not optimal (docs/adr/0019-planner.md)."""
    size = instance.size
    counts = np.arange(1, 1 + min(size, max(1, EFFORT // size**2)))
    wire_s = np.full((size + 1, 1 + counts.size), np.inf)
    previous = np.zeros(wire_s.shape, np.int64)
    wire_s[0, 0] = 0.0
    for stop in range(1, size + 1):
        computed_s = instance.compute_s(0, stop) + instance.group_s * (counts - 1)
        sends_s = np.maximum(wire_s[:stop, :-1], computed_s)
        ends_s = sends_s + instance.wire_s(np.arange(stop), stop)[:, np.newaxis]
        previous[stop, 1:] = np.argmin(ends_s, axis=0)
        wire_s[stop, 1:] = np.min(ends_s, axis=0)
    # Tolerate differences in rounding. The first of the fitting numbers of groups is the smallest.
    stop, count = size, int(np.argmax(wire_s[size] <= np.min(wire_s[size]) * (1 + 1e-9)))
    plan: list[int] = []
    while stop > 0:
        plan.insert(0, stop)
        stop, count = int(previous[stop, count]), count - 1
    return tuple(plan)


@dataclass(frozen=True)
class HiddenDensities:
    """The densities that ``density="hiding"`` found, and measured costs, the same on all ranks.

    Attributes
    ----------
    c_max : largest compression ratio; no density is below 1 / c_max
    densities : by name, the density of each compressed tensor whose gradient was measured
    hidden : number of messages that are predicted to end before the next message is ready
    messages : number of messages of a step
    backward_s : seconds from the first gradient to the last, including selection
    exposed_s : predicted seconds from the last gradient to the end of the last message
    wire : seconds of a message, as a linear function of the bytes that a rank receives
    """

    label: ClassVar[str] = "hiding"
    option: ClassVar[str] = "density='hiding'"

    c_max: float
    densities: dict[str, float]
    hidden: int
    messages: int
    backward_s: float
    exposed_s: float
    wire: Line

    @classmethod
    def make(cls, costs: Costs) -> HiddenDensities:
        """Choose the density of each message by ``largest_hidden``. The idea is that of
        shi2020lags; the rule is our own."""
        rule = costs.configuration.rule
        assert rule is not None and rule.c_max is not None
        specs, least = costs.specs, 1.0 / rule.c_max
        grid = np.geomspace(least, 1.0, GRID + 1)
        densities: dict[str, float] = {}
        hidden = messages = 0
        backward_s = exposed_s = 0.0
        for keys in costs.families():
            layers = costs.layers(keys)
            own_s = np.cumsum([costs.work(specs[i].numel) for i in layers]).tolist()
            encoded_s = {i: costs.ready_s[specs[i].key] + s for i, s in zip(layers, own_s)}
            mine = restricted(costs.buckets, layers)
            ready = sorted((max(encoded_s[i] for i in bucket), bucket) for bucket in mine)
            ready_s = np.array([at_s for at_s, _ in ready])
            takes_s = np.array([costs.wire(_received(costs, bucket, grid)) for _, bucket in ready])
            chosen, ends_s = largest_hidden(ready_s, takes_s)
            for number, (_, bucket) in zip(chosen, ready):
                densities |= {specs[i].key: float(grid[number]) for i in bucket}
            hidden += int(np.sum(ends_s[:-1] <= ready_s[1:]))
            messages += len(ready)
            backward_s += float(ready_s[-1])
            exposed_s += float(ends_s[-1] - ready_s[-1])
        return cls(rule.c_max, densities, hidden, messages, backward_s, exposed_s, costs.wire)

    @classmethod
    def from_dict(cls, told: State) -> HiddenDensities:
        return cls(**{**told, "wire": Line(**told["wire"])})

    def __str__(self) -> str:
        found = self.densities.values()
        return (
            f"densities from {min(found, default=1.0):.3g} to {max(found, default=1.0):.3g}, at "
            f"which {self.hidden} of {self.messages} messages hide behind a backward pass of "
            f"{1e3 * self.backward_s:.1f} ms, and the exchange ends {1e3 * self.exposed_s:.1f} ms "
            f"after it (a message takes {1e3 * self.wire.start_s:.2f} ms plus "
            f"{1e9 * self.wire.byte_s:.2f} ns per received byte)"
        )


def largest_hidden(ready_s: np.ndarray, takes_s: np.ndarray) -> tuple[list[int], np.ndarray]:
    """Choose the largest size of each message at which the message hides, that is, ends before the
    next message is ready. Return the indices of the chosen sizes, and the end time of each message,
    float64 [messages], in seconds.

    Messages are sent one after the other, each as soon as it is ready. A message hides if it takes
    at most ``ready(next) - max(ready(this), end(previous))`` seconds. A message that does not hide
    at any size gets the smallest size, and delays the next message. The last message also gets the
    smallest size, because no gradient follows it.

    ready_s : time at which each message is ready, float64 [messages], ascending
    takes_s : seconds of each message at each size, float64 [messages, sizes], with ascending sizes
    """
    found, ends_s, free_s = [], [], 0.0
    for number, (at_s, sizes_s) in enumerate(zip(ready_s.tolist(), takes_s)):
        sends_s = max(free_s, at_s)
        next_s = float(ready_s[number + 1]) if number + 1 < len(ready_s) else 0.0
        fitting = np.flatnonzero(sends_s + sizes_s <= next_s)
        found.append(int(fitting[-1]) if fitting.size else 0)
        free_s = sends_s + float(sizes_s[found[-1]])
        ends_s.append(free_s)
    return found, np.array(ends_s)


def _received(costs: Costs, bucket: Sequence[int], grid: np.ndarray) -> np.ndarray:
    codec = costs.configuration.codec
    total = np.zeros(len(grid))
    for spec in (costs.specs[position] for position in bucket):
        numel, width = spec.numel, spec.accumulator.itemsize
        total += [
            costs.received(count_from_density(numel, d) * codec.entry_bytes(numel, d, width))
            for d in grid.tolist()
        ]
    return np.maximum.accumulate(total)
