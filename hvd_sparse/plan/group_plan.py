"""The plan of groups of tensors, made from the measurements of all ranks."""

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
    """The groups that were decided, and the costs by which; the same on all ranks.

    Attributes
    ----------
    groups : names of the tensors of each group, which travel together
    predicted_s : seconds from a step's first gradient to its last result with "none" merged, with
        "all" in one message, by the "default" groups, those that were measured, and as "planned".
        The model's seconds, and as much more as the measured steps took beyond them, for what it
        does not know (Horovod's own work, tensors that are not compressed).  With several
        optimizers the sum over a step of each
    wire : seconds of a message's first collective, over the bytes that a rank receives
    late : seconds of the collectives behind it, which begin when the last gradient has come; 0
        where a message is one allgather
    work : seconds of selecting and encoding, over the entries of a tensor, or of the vector of a
        group
    decode : seconds of decoding, over the entries of a tensor
    """

    groups: tuple[tuple[str, ...], ...]
    predicted_s: dict[str, float]
    wire: Line
    late: Line
    work: Line
    decode: Line

    def to_dict(self) -> dict[str, object]:
        """Return all of it, JSON-able; ``GroupPlan.from_dict`` returns an equal plan."""
        return asdict(self)

    @classmethod
    def from_dict(cls, told: Told) -> GroupPlan:
        """Return the plan that ``to_dict`` described."""
        lines = {name: Line(**told[name]) for name in ("wire", "late", "work", "decode")}
        return cls(
            tuple(tuple(names) for names in told["groups"]), dict(told["predicted_s"]), **lines
        )

    def buckets(self, specs: Sequence[TensorSpec]) -> Buckets:
        """Return the positions of each group's tensors, as ``step.buckets`` has them."""
        positions = {spec.key: position for position, spec in enumerate(specs)}
        return [tuple(sorted(positions[name] for name in names)) for names in self.groups]

    def __str__(self) -> str:
        told = ", ".join(
            f"{name} {1e3 * seconds:.1f} ms" for name, seconds in self.predicted_s.items()
        )
        return (
            f"tensors travel in {len(self.groups)} messages, of at most "
            f"{max(map(len, self.groups), default=0)} tensors (a "
            f"step's exchange as predicted: {told}; a message takes "
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
    """Return the groups that are quickest by the model; the default ones if none are quicker.

    The slowest rank's times count, as all ranks wait for it.  Tensors that come in different steps,
    as those of another optimizer do, get groups of their own.  Tensors that came in no measured
    step stay together as in the default.

    Parameters
    ----------
    route : of a message
    specs : the registered tensors
    told : ``Measurements.to_dict`` of every rank; rank 0 has seen a step
    samples : times of the route's collectives, of every rank
    default : the present buckets
    """
    costs = measured_costs(route, specs, told, samples, default)
    predicted_s = dict.fromkeys(WAYS, 0.0)
    chosen: Buckets = []
    for keys in families(told[0]["seen"], route.configuration, specs):
        buckets, ends_s = _plan_family(keys, costs, route, specs, default)
        chosen += buckets
        # What the model does not know, taken from steps that ran with the default groups.
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
    """The costs of messages and computing, and each tensor's ready time and bytes sent.

    ``work`` is of what is selected from at once, and ``encode_s`` what every tensor takes besides.
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
    """Return the costs of the slowest rank; the parameters are those of ``make_plan``."""
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
    """Return the groups of tensors that come in the same steps, and a step's seconds by plan."""
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
    # The search is over contiguous groups that Horovod does not fuse: others may be quicker.
    quickest = min(("default", "planned", "all", "none"), key=lambda way: ends_s[way])
    return buckets[quickest], {**ends_s, "planned": ends_s[quickest]}


def layers_of(
    keys: Sequence[str],
    ready_s: Mapping[str, float],
    specs: Sequence[TensorSpec],
    configuration: Configuration,
) -> tuple[list[int], np.ndarray]:
    """Return the positions of the compressed tensors in the order of the backward pass, and the
    seconds of the pass before each, float64 [tensors].

    The seconds before a tensor that is not compressed count with the next compressed one, at the
    end with the last.

    Parameters
    ----------
    keys : tensors that come in the same steps, a compressed one among them
    ready_s : by key, seconds from the start of the backward pass to the gradient
    specs : the registered tensors
    configuration : decides which tensors are compressed

    Raises
    ------
    InvalidOption : a tensor was timed that is not registered
    """
    unknown = sorted(set(keys) - {spec.key for spec in specs})
    if unknown:
        raise InvalidOption(
            f"gradients of {', '.join(unknown)} were timed, and are not among the registered "
            "tensors"
        )
    # of equal times the tensor that was registered last comes first: backward passes go that way
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
    """Return the buckets, those apart whose tensors cannot be selected from as one vector."""
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
    """Return the seconds of selecting and encoding over the entries of what is selected from at
    once, and the seconds that every tensor takes besides."""
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
    """Return the seconds that these steps took on the slowest rank."""
    return max(
        float(np.median([each["whole"].get(str(step), 0.0) for step in steps])) for each in told
    )


def families(
    seen: Mapping[str, Sequence[int]], configuration: Configuration, specs: Sequence[TensorSpec]
) -> list[list[str]]:
    """Return the sets of tensors that come in the same steps, those with a compressed one."""
    families: dict[object, list[str]] = defaultdict(list)
    dtypes = {spec.key: spec.accumulator for spec in specs}
    for key, steps in seen.items():
        # Vectors are of one dtype.
        dtype = dtypes.get(key) if configuration.select_over == "group" else None
        families[tuple(steps), dtype].append(key)
    compressed = {specs[position].key for (position,) in one_per_tensor(specs, configuration)}
    return [keys for keys in families.values() if compressed.intersection(keys)]


def restricted(buckets: Buckets, positions: Iterable[int]) -> Buckets:
    """Return the buckets without the tensors at other positions."""
    wanted = set(positions)
    parts = [tuple(position for position in bucket if position in wanted) for bucket in buckets]
    return [part for part in parts if part]


def _wires(route: Route, samples: Sequence[Samples]) -> tuple[Line, Line]:
    """Return the costs of the first collective, and of those behind it together.

    They hold the headers that every message has.
    """
    lines = {
        kind: _wire([each[kind] for each in samples], route.header_bytes) for kind in samples[0]
    }
    return lines[route.kinds[0]], route.late(lines)


def _wire(of_ranks: Sequence[Sequence[tuple[float, list[float]]]], header_bytes: float) -> Line:
    """Return the cost of a collective, by the slowest rank at every repetition."""
    pairs: list[tuple[float, float]] = []
    for at_size in zip(*of_ranks):
        slowest = np.max(np.asarray([times for _, times in at_size], np.float64), axis=0)
        pairs += [(at_size[0][0], seconds) for seconds in slowest.tolist()]
    line = fit_line(pairs)
    return Line(line.start_s + line.byte_s * header_bytes, line.byte_s)


def _line(seconds: Mapping[str, float], numel: Mapping[str, int]) -> Line:
    """Return the seconds of a tensor over its entries.

    With tensors of one size alone, all of them count for the entries.
    """
    samples = [(float(numel[key]), value) for key, value in seconds.items()]
    if not samples:
        return Line(0.0, 0.0)
    if len({size for size, _ in samples}) == 1:
        return Line(
            0.0, float(np.median([value for _, value in samples])) / max(1.0, samples[0][0])
        )
    return fit_line(samples)
