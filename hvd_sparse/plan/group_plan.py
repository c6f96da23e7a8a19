"""MGS-SGD: groups of tensors planned from the measurements of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.costs import Buckets, Costs, restricted
from hvd_sparse.plan.lines import Line
from hvd_sparse.plan.measurements import Told
from hvd_sparse.plan.planner import Instance, best_plan, groups, partition_end_s
from hvd_sparse.step.buckets import one_per_tensor, why_not_merged
from hvd_sparse.types import TensorSpec

WAYS = ("none", "all", "default", "planned")


@dataclass(frozen=True)
class GroupPlan:
    """The planned groups and the measured costs; the same on all ranks.

    Attributes
    ----------
    groups : names of the tensors of each group, which share a message
    predicted_s : predicted seconds from a step's first gradient to its last result, by grouping:
        "none" (one tensor per message), "all" (one message), "default" (the groups that were
        measured) and "planned".  A constant is added to the model's times so that "default" agrees
        with the measured steps; it stands for costs outside the model, for example Horovod's own
        work and dense tensors.  With several optimizers the sum over one step of each
    wire : time of a message's first collective, as a line in the bytes that a rank receives
    late : time of the collectives after the first, which start after the last gradient; 0 if a
        message is one allgather
    work : time of selecting and encoding, as a line in the entries of a tensor, or of a group's
        vector with ``select_over="group"``
    decode : time of decoding, as a line in the entries of a tensor
    """

    label: ClassVar[str] = "plan"
    purpose: ClassVar[str] = "plan the groups"
    option: ClassVar[str] = "groups='planned'"

    groups: tuple[tuple[str, ...], ...]
    predicted_s: dict[str, float]
    wire: Line
    late: Line
    work: Line
    decode: Line

    @classmethod
    def make(cls, costs: Costs) -> GroupPlan:
        """Return the groups with the shortest predicted step, or the default if none is shorter.

        Tensors of different steps, for example of different optimizers, are never in one group.
        Tensors without a gradient in the measured steps are grouped as by default.
        """
        specs, configuration = costs.specs, costs.route.configuration
        predicted_s = dict.fromkeys(WAYS, 0.0)
        chosen: Buckets = []
        for keys in costs.families():
            buckets, ends_s = _plan_family(keys, costs)
            chosen += buckets
            # Costs outside the model, from the measured steps, which ran with the default groups.
            rest_s = max(0.0, costs.whole_s(keys[0]) - ends_s["default"])
            predicted_s = {way: total + ends_s[way] + rest_s for way, total in predicted_s.items()}
        planned = {position for bucket in chosen for position in bucket}
        compressed = {position for (position,) in one_per_tensor(specs, configuration)}
        chosen += restricted(costs.buckets, compressed - planned)
        named = tuple(tuple(specs[position].key for position in bucket) for bucket in chosen)
        return cls(named, predicted_s, costs.wire, costs.late, costs.work, costs.decode)

    def to_dict(self) -> dict[str, object]:
        """Return the plan as a JSON-serializable dict, for ``GroupPlan.from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Told) -> GroupPlan:
        """Return the plan of a dict from ``to_dict``."""
        lines = {name: Line(**told[name]) for name in ("wire", "late", "work", "decode")}
        return cls(
            tuple(tuple(names) for names in told["groups"]), dict(told["predicted_s"]), **lines
        )

    def buckets(self, specs: Sequence[TensorSpec]) -> Buckets:
        """Return the positions of each group's tensors, in the form of ``step.buckets``."""
        positions = {spec.key: position for position, spec in enumerate(specs)}
        return [tuple(sorted(positions[name] for name in names)) for names in self.groups]

    def __str__(self) -> str:
        told = ", ".join(
            f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.predicted_s.items()
        )
        return (
            f"tensors are sent in {len(self.groups)} messages, of at most "
            f"{max(map(len, self.groups), default=0)} tensors (predicted time of a step's "
            f"exchange: {told}; a message takes "
            f"{1e3 * (self.wire.start_s + self.late.start_s):.2f} ms and "
            f"{1e9 * self.wire.byte_s:.2f} ns a byte received, selecting and encoding "
            f"{1e6 * self.work.start_s:.0f} us a "
            f"selection and {1e9 * self.work.byte_s:.2f} ns an entry)"
        )


def _plan_family(keys: Sequence[str], costs: Costs) -> tuple[Buckets, dict[str, float]]:
    """Plan tensors of the same steps: their groups, and the seconds of a step by grouping."""
    route, specs = costs.route, costs.specs
    layers, backward_s = _layers_of(keys, costs.ready_s, specs, route.configuration)
    members = [specs[position] for position in layers]
    received = [route.received(each.numel, costs.nbytes.get(each.key, 0.0)) for each in members]
    instance = Instance(
        backward_s + costs.encode_s,
        np.array([each.numel for each in members]),
        np.array([first for first, _ in received]),
        costs.wire,
        costs.work,
        per_tensor=route.configuration.select_over != "group",
        late=costs.late,
        late_nbytes=np.array([behind for _, behind in received]),
    )
    places = {position: place for place, position in enumerate(layers)}
    planned = [tuple(sorted(layers[i:j])) for i, j in groups(best_plan(instance))]
    buckets: dict[str, Buckets] = {
        "default": restricted(costs.buckets, places),
        "planned": _apart_where_needed(planned, specs, route.configuration),
        "all": _apart_where_needed([tuple(places)], specs, route.configuration),
        "none": [(position,) for position in places],
    }
    settle_s = sum(float(costs.decode(each.numel)) for each in members)
    ends_s = {
        way: settle_s
        + partition_end_s(instance, [[places[position] for position in part] for part in parts])
        for way, parts in buckets.items()
    }
    # The search only covers contiguous groups that Horovod does not fuse, so compare with others.
    quickest = min(ends_s, key=ends_s.__getitem__)
    return buckets[quickest], {**ends_s, "planned": ends_s[quickest]}


def _layers_of(
    keys: Sequence[str],
    ready_s: Mapping[str, float],
    specs: Sequence[TensorSpec],
    configuration: Configuration,
) -> tuple[list[int], np.ndarray]:
    """Return the compressed tensors in backward order, and the backward pass's time before each.

    The tensors are given by position, the times in seconds, float64 [tensors].  Time before a dense
    tensor is added to the next compressed tensor, or at the end to the last one.
    """
    wanted = set(keys)
    unknown = sorted(wanted - {spec.key for spec in specs})
    if unknown:
        raise InvalidOption(
            f"gradients of {', '.join(unknown)} were timed, and these tensors are not registered: "
            "register all tensors before the first step"
        )
    # Sort equal times by descending position, because backward passes run in reverse order.
    seen = sorted((ready_s[spec.key], -i) for i, spec in enumerate(specs) if spec.key in wanted)
    layers, ends_s = [], [0.0]
    for at_s, place in seen:
        if configuration.is_sparse(specs[-place].shape, specs[-place].numel):
            layers.append(-place)
            ends_s.append(at_s)
    ends_s[-1] = seen[-1][0]
    return layers, np.diff(ends_s)


def _apart_where_needed(
    buckets: Buckets, specs: Sequence[TensorSpec], configuration: Configuration
) -> Buckets:
    """Split the buckets whose tensors cannot be joined into one vector into single tensors."""
    found: Buckets = []
    for bucket in buckets:
        cannot = why_not_merged([specs[position] for position in bucket], configuration)
        found += [(position,) for position in bucket] if cannot else [bucket]
    return found
