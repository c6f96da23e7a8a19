"""Planning of tensor groups from the measurements of all ranks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.costmodel.ends import partition_end_s
from hvd_sparse.plan.costmodel.exact import best_plan
from hvd_sparse.plan.costmodel.instance import Instance, groups
from hvd_sparse.plan.costmodel.lines import Line, fit_line
from hvd_sparse.plan.measurements import Samples, Told
from hvd_sparse.plan.route import Route
from hvd_sparse.step.buckets import one_per_tensor, why_not_merged
from hvd_sparse.step.group_selection import name_of
from hvd_sparse.types import TensorSpec

Buckets = list[tuple[int, ...]]

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

    groups: tuple[tuple[str, ...], ...]
    predicted_s: dict[str, float]
    wire: Line
    late: Line
    work: Line
    decode: Line

    def to_dict(self) -> dict[str, object]:
        """Return the plan as a JSON-serializable dict, for ``GroupPlan.from_dict``."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Told) -> GroupPlan:
        """Return the plan from its dict."""
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


def make_plan(
    route: Route,
    specs: Sequence[TensorSpec],
    told: Sequence[Told],
    samples: Sequence[Samples],
    default: Buckets,
) -> GroupPlan:
    """Return the groups with the shortest predicted step, or the default if none is shorter.

    The prediction uses the slowest rank's times, because all ranks wait for it.  Tensors of
    different steps, for example of different optimizers, are never in one group.  Tensors without a
    gradient in the measured steps are grouped as by default.

    Parameters
    ----------
    route : the collectives of a message
    specs : the registered tensors
    told : ``Measurements.to_dict`` of every rank; rank 0 has measured at least one step
    samples : times of the route's collectives on every rank
    default : the present buckets
    """
    costs = measured_costs(route, specs, told, samples, default)
    predicted_s = dict.fromkeys(WAYS, 0.0)
    chosen: Buckets = []
    for keys in families(told[0]["seen"], route.configuration, specs):
        buckets, ends_s = _plan_family(keys, costs, route, specs, default)
        chosen += buckets
        # Costs outside the model, from the measured steps, which ran with the default groups.
        rest_s = max(0.0, _whole_s(told, told[0]["seen"][keys[0]]) - ends_s["default"])
        predicted_s = {way: seconds + ends_s[way] + rest_s for way, seconds in predicted_s.items()}
    planned = {position for bucket in chosen for position in bucket}
    unseen = (
        position
        for (position,) in one_per_tensor(specs, route.configuration)
        if position not in planned
    )
    chosen += restricted(default, unseen)
    groups = tuple(tuple(specs[position].key for position in bucket) for bucket in chosen)
    return GroupPlan(groups, predicted_s, costs.wire, costs.late, costs.work, costs.decode)


@dataclass(frozen=True)
class Costs:
    """The costs of messages and computation, and the ready time and sent bytes of each tensor.

    ``work`` is the time to select from one vector and encode it; ``encode_s`` is the additional
    time per tensor, in seconds.
    """

    wire: Line
    late: Line
    work: Line
    encode_s: float
    decode: Line
    ready_s: Mapping[str, float]
    nbytes: Mapping[str, float]


def measured_costs(
    route: Route,
    specs: Sequence[TensorSpec],
    told: Sequence[Told],
    samples: Sequence[Samples],
    buckets: Buckets,
) -> Costs:
    """Return the costs on the slowest rank; the parameters are those of ``make_plan``."""
    numel = {spec.key: spec.numel for spec in specs}
    work, encode_s = _work(route.configuration, specs, told, buckets)
    return Costs(
        *_wires(route, samples),
        work,
        encode_s,
        _line(_slowest(told, "decode"), numel),
        _slowest(told, "ready"),
        _slowest(told, "nbytes"),
    )


def _plan_family(
    keys: Sequence[str],
    costs: Costs,
    route: Route,
    specs: Sequence[TensorSpec],
    default: Buckets,
) -> tuple[Buckets, dict[str, float]]:
    """Plan tensors of the same steps: their groups, and the seconds of a step by grouping."""
    layers, backward_s = layers_of(keys, costs.ready_s, specs, route.configuration)
    is_merged = route.configuration.select_over == "group"
    members = [specs[position] for position in layers]
    received = [route.received(each.numel, costs.nbytes.get(each.key, 0.0)) for each in members]
    instance = Instance(
        backward_s + costs.encode_s,
        np.array([each.numel for each in members]),
        np.array([first for first, _ in received]),
        costs.wire,
        costs.work,
        per_tensor=not is_merged,
        late=costs.late,
        late_nbytes=np.array([behind for _, behind in received]),
    )
    places = {position: place for place, position in enumerate(layers)}
    planned = [tuple(sorted(layers[i:j])) for i, j in groups(best_plan(instance))]
    buckets: dict[str, Buckets] = {
        "none": [(position,) for position in places],
        "all": [tuple(places)],
        "default": restricted(default, places),
        "planned": planned,
    }
    for way in ("all", "planned"):
        buckets[way] = _apart_where_needed(buckets[way], specs, route.configuration)
    settle_s = sum(float(costs.decode(each.numel)) for each in members)
    ends_s = {
        way: settle_s
        + partition_end_s(
            instance, [[places[position] for position in bucket] for bucket in buckets[way]]
        )
        for way in WAYS
    }
    # The search only covers contiguous groups that Horovod does not fuse, so compare with others.
    quickest = min(("default", "planned", "all", "none"), key=lambda way: ends_s[way])
    return buckets[quickest], {**ends_s, "planned": ends_s[quickest]}


def layers_of(
    keys: Sequence[str],
    ready_s: Mapping[str, float],
    specs: Sequence[TensorSpec],
    configuration: Configuration,
) -> tuple[list[int], np.ndarray]:
    """Return the compressed tensors in backward order, and the backward pass's time before each.

    The tensors are given by position, the times in seconds, float64 [tensors].  Time before a dense
    tensor is added to the next compressed tensor, or at the end to the last one.

    Parameters
    ----------
    keys : tensors of the same steps, at least one of them compressed
    ready_s : by key, seconds from the start of the backward pass to the gradient
    specs : the registered tensors
    configuration : determines which tensors are compressed

    Raises
    ------
    InvalidOption : a timed tensor is not registered
    """
    unknown = sorted(set(keys) - {spec.key for spec in specs})
    if unknown:
        raise InvalidOption(
            f"gradients of {', '.join(unknown)} were timed, and these tensors are not registered: "
            "register all tensors before the first step"
        )
    # Sort equal times by descending position, because backward passes run in reverse order.
    wanted = set(keys)
    seen = sorted(
        (ready_s[spec.key], -place) for place, spec in enumerate(specs) if spec.key in wanted
    )
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


def _work(
    configuration: Configuration,
    specs: Sequence[TensorSpec],
    told: Sequence[Told],
    default: Buckets,
) -> tuple[Line, float]:
    """Return ``Costs.work`` and ``Costs.encode_s``."""
    work_s, encode_s = _slowest(told, "work"), _slowest(told, "encode")
    numel = {spec.key: spec.numel for spec in specs}
    if configuration.select_over != "group":
        return _line(work_s, numel), 0.0
    vectors = [[specs[position] for position in bucket] for bucket in default]
    entries = {name_of(members): sum(spec.numel for spec in members) for members in vectors}
    select_s = {
        name: seconds - encode_s.get(name, 0.0)
        for name, seconds in work_s.items()
        if name in entries
    }
    select, encode = _line(select_s, entries), _line(encode_s, numel)
    return Line(select.start_s, select.byte_s + encode.byte_s), encode.start_s


def _slowest(told: Sequence[Told], kind: str) -> dict[str, float]:
    largest: dict[str, float] = {}
    for each in told:
        for key, value in each[kind].items():
            largest[key] = max(value, largest.get(key, 0.0))
    return largest


def _whole_s(told: Sequence[Told], steps: Sequence[int]) -> float:
    """Return the median time of the steps on the slowest rank, in seconds."""
    return max(
        float(np.median([each["whole"].get(str(step), 0.0) for step in steps])) for each in told
    )


def families(
    seen: Mapping[str, Sequence[int]], configuration: Configuration, specs: Sequence[TensorSpec]
) -> list[list[str]]:
    """Return the sets of tensors that had gradients in the same steps.

    Sets without a compressed tensor are left out.
    """
    families: dict[object, list[str]] = defaultdict(list)
    dtypes = {spec.key: spec.accumulator for spec in specs}
    for key, steps in seen.items():
        # Tensors of one vector have one dtype.
        dtype = dtypes.get(key) if configuration.select_over == "group" else None
        families[tuple(steps), dtype].append(key)
    compressed = {specs[position].key for (position,) in one_per_tensor(specs, configuration)}
    return [keys for keys in families.values() if compressed.intersection(keys)]


def restricted(buckets: Buckets, positions: Iterable[int]) -> Buckets:
    """Return the buckets restricted to the tensors at ``positions``."""
    wanted = set(positions)
    parts = [tuple(position for position in bucket if position in wanted) for bucket in buckets]
    return [part for part in parts if part]


def _wires(route: Route, samples: Sequence[Samples]) -> tuple[Line, Line]:
    """Return the costs, with message headers, of the first collective and of all later ones."""
    lines = {
        kind: _wire([each[kind] for each in samples], route.header_bytes) for kind in samples[0]
    }
    return lines[route.kinds[0]], route.late(lines)


def _wire(of_ranks: Sequence[Sequence[tuple[float, list[float]]]], header_bytes: float) -> Line:
    """Fit the cost of a collective to the times of the slowest rank in each repetition."""
    pairs: list[tuple[float, float]] = []
    for at_size in zip(*of_ranks):
        slowest = np.max(np.asarray([times for _, times in at_size], np.float64), axis=0)
        pairs += [(at_size[0][0], seconds) for seconds in slowest.tolist()]
    line = fit_line(pairs)
    return Line(line.start_s + line.byte_s * header_bytes, line.byte_s)


def _line(seconds: Mapping[str, float], numel: Mapping[str, int]) -> Line:
    """Fit the time of a tensor as a line in its entries; proportional if all have one size."""
    samples = [(float(numel[key]), value) for key, value in seconds.items()]
    if not samples:
        return Line(0.0, 0.0)
    if len({size for size, _ in samples}) == 1:
        return Line(
            0.0, float(np.median([value for _, value in samples])) / max(1.0, samples[0][0])
        )
    return fit_line(samples)
