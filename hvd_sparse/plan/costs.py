"""The times of messages and of computation, as lines fitted to the measurements of all ranks."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.contract import Collective, Placement, Request
from hvd_sparse.configuration import Configuration
from hvd_sparse.exchanges.contract import DENSE_BYTES, Exchange
from hvd_sparse.schedules.contract import LONG_RUN, UNKNOWN_DENSITY
from hvd_sparse.step.buckets import expected_bytes, one_per_tensor
from hvd_sparse.step.group_selection import name_of
from hvd_sparse.types import Report, State, TensorSpec
from hvd_sparse.wire.message import overhead_bytes

LOCAL = "local"
"""Kind of an alltoall among the ranks of one node."""
SIZES = 5
"""Number of message lengths that are timed."""
REPETITIONS = 5
"""Number of timed repetitions of each length, after one that is not timed."""
LEAST_SPREAD = 8
"""Least ratio of the longest to the shortest message, so that times differ by more than noise."""
ITEM = 8
"""Bytes by which the lengths of repetitions differ; a multiple of the itemsize of sums."""

Buckets = list[tuple[int, ...]]
Samples = dict[str, list[tuple[float, list[float]]]]
"""For each kind of collective, a list with a pair for each length: the bytes that a rank receives,
and the seconds of each repetition."""
Numbers = Any  # a float or an array of floats


@dataclass(frozen=True)
class Line:
    """A time of ``start_s + byte_s * size`` seconds. The size is bytes, or entries of computing."""

    start_s: float
    byte_s: float

    def __call__(self, size: Numbers) -> Numbers:
        return self.start_s + self.byte_s * size


@dataclass(frozen=True)
class Route:
    """An exchange among given ranks: its collectives, and the bytes that a rank receives."""

    configuration: Configuration
    exchange: Exchange
    placement: Placement

    @property
    def others(self) -> int:
        return max(1, self.placement.world_size - 1)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The collectives in order: "allgather", "allreduce", "alltoall" or "local"."""
        phases = self.exchange.phases(self.configuration.selector, self.placement.world_size)
        return (LOCAL, *phases[1:]) if self.exchange.sums_first else tuple(phases)

    def received(self, numel: int, brought: float) -> tuple[float, float]:
        """Return the bytes that a rank receives for a tensor: in the first collective, and in all
        later ones together. Each rank sends ``brought`` bytes, 0 if the number is not known."""
        if self.exchange.is_one_allgather:
            each = brought or expected_bytes(self.configuration, numel, step=LONG_RUN)
            return (each + overhead_bytes(1) - overhead_bytes(0)) * self.others, 0.0
        density = self.configuration.density(LONG_RUN) or UNKNOWN_DENSITY
        real = count_from_density(numel, density) / numel
        entry_bytes = self.configuration.codec.entry_bytes(numel, density)
        inbound = float(self.exchange.inbound(real, entry_bytes, self.placement)) * numel
        if self.exchange.sums_first:
            mates = 1 - self.placement.node_count / self.placement.world_size
            return numel * DENSE_BYTES * mates, inbound
        first = inbound / len(self.kinds)  # divided evenly among the collectives
        return first, inbound - first


def sizes_of(told: Sequence[Report]) -> list[int]:
    """Return the message lengths to time, in bytes: from the length for the smallest tensor to that
    for all tensors together. ``told`` are the measurements of all ranks."""
    shares = [nbytes for each in told for nbytes in each["nbytes"].values() if nbytes > 0]
    least = max(64.0, min(shares, default=64.0))
    most = max([least * LEAST_SPREAD, *(sum(each["nbytes"].values()) for each in told)])
    return [round(size) for size in np.geomspace(least, most, SIZES).tolist()]


def time_messages(
    collective: Collective, name: str, route: Route, sizes: Sequence[int], timeout_s: float | None
) -> Samples:
    """Time the route's collectives with messages of the given lengths, in bytes, on all ranks at
    once. Lengths vary a little, so that the times include Horovod's negotiation of a new length."""
    found: Samples = {}
    ranks, mates = collective.world_size, route.placement.mates(route.placement.rank)
    for kind in dict.fromkeys(route.kinds):
        found[kind] = []
        for number, size in enumerate(sizes):
            times, received = [], []
            for repetition in range(1 + REPETITIONS):
                request, nbytes = _request(kind, size + ITEM * repetition, mates, ranks)
                start_s = time.perf_counter()
                request.start(collective, f"{name}.{kind}.{number}").wait(timeout_s)
                times.append(time.perf_counter() - start_s)
                received.append(nbytes)
            found[kind].append((statistics.median(received), times[1:]))
    return found


def _request(kind: str, nbytes: int, mates: list[int], ranks: int) -> tuple[Request, float]:
    """Return a request with a message of about ``nbytes``, and the bytes that a rank receives."""
    others = max(1, ranks - 1)  # a single rank counts as two
    if kind == "allgather":
        return Request(kind, np.zeros(nbytes, np.uint8)), others * nbytes
    if kind == "allreduce":
        values = np.random.default_rng(0).laplace(0.0, 1e-3, max(1, nbytes // 4))
        values = values.astype(np.float32)
        return Request(kind, values), 2 * values.nbytes * others / max(2, ranks)
    splits = np.zeros(ranks, np.int64)
    partners = mates if kind == LOCAL else list(range(ranks))
    splits[partners] = max(1, nbytes // len(partners))
    parts = np.zeros(int(splits.sum()), np.uint8)
    received = float(splits.max()) * max(1, len(partners) - 1)
    return Request("alltoall", parts, splits), received


class Costs:
    """Costs measured on the slowest rank, because all ranks wait for it.

    wire, late, work, decode : lines, as in ``GroupPlan``
    encode_s : constant seconds of encoding a tensor, if ``work`` does not include them; else 0
    ready_s : by tensor name, seconds from a step's first gradient to this tensor's
    nbytes : by tensor name, bytes that a rank sends
    """

    def __init__(
        self,
        route: Route,
        specs: Sequence[TensorSpec],
        told: Sequence[State],
        samples: Sequence[Samples],
        buckets: Buckets,
    ) -> None:
        self.route, self.specs, self.buckets, self._told = route, specs, buckets, told
        header_bytes = overhead_bytes(0) * route.others
        lines = {kind: _wire([each[kind] for each in samples], header_bytes) for kind in samples[0]}
        self.wire = lines[route.kinds[0]]
        self.late = one_after_another([lines[kind] for kind in route.kinds[1:]])
        self._numel = {spec.key: spec.numel for spec in specs}
        self.work, self.encode_s = self._work()
        self.decode = _line(self._slowest("decode"), self._numel)
        self.ready_s, self.nbytes = self._slowest("ready"), self._slowest("nbytes")

    def families(self) -> list[list[str]]:
        """Return lists of tensors, at least one compressed, with gradients in the same steps."""
        families: dict[object, list[str]] = defaultdict(list)
        configuration = self.route.configuration
        dtypes = {spec.key: spec.accumulator for spec in self.specs}
        for key, steps in self._told[0]["seen"].items():
            # With select_over="group", a group is selected from as one vector, of one dtype.
            dtype = dtypes.get(key) if configuration.select_over == "group" else None
            families[tuple(steps), dtype].append(key)
        compressed = {
            self.specs[position].key for (position,) in one_per_tensor(self.specs, configuration)
        }
        return [keys for keys in families.values() if compressed.intersection(keys)]

    def whole_s(self, key: str) -> float:
        steps = [str(step) for step in self._told[0]["seen"][key]]
        return max(
            float(np.median([each["whole"].get(step, 0.0) for step in steps]))
            for each in self._told
        )

    def _slowest(self, kind: str) -> dict[str, float]:
        largest: dict[str, float] = {}
        for each in self._told:
            for key, value in each[kind].items():
                largest[key] = max(value, largest.get(key, 0.0))
        return largest

    def _work(self) -> tuple[Line, float]:
        work_s, encode_s = self._slowest("work"), self._slowest("encode")
        if self.route.configuration.select_over != "group":
            return _line(work_s, self._numel), 0.0
        vectors = [[self.specs[position] for position in bucket] for bucket in self.buckets]
        entries = {name_of(members): sum(spec.numel for spec in members) for members in vectors}
        select_s = {
            name: seconds - encode_s.get(name, 0.0)
            for name, seconds in work_s.items()
            if name in entries
        }
        select, encode = _line(select_s, entries), _line(encode_s, self._numel)
        return Line(select.start_s, select.byte_s + encode.byte_s), encode.start_s


def restricted(buckets: Buckets, positions: Iterable[int]) -> Buckets:
    wanted = set(positions)
    parts = [tuple(position for position in bucket if position in wanted) for bucket in buckets]
    return [part for part in parts if part]


def _wire(of_ranks: Sequence[Sequence[tuple[float, list[float]]]], header_bytes: float) -> Line:
    """Return the time of a collective, fitted to the slowest rank's time of each repetition."""
    pairs: list[tuple[float, float]] = []
    for at_size in zip(*of_ranks):
        slowest = np.max(np.asarray([times for _, times in at_size], np.float64), axis=0)
        pairs += [(at_size[0][0], seconds) for seconds in slowest.tolist()]
    line = fit_line(pairs)
    return Line(line.start_s + line.byte_s * header_bytes, line.byte_s)


def _line(seconds: Mapping[str, float], numel: Mapping[str, int]) -> Line:
    samples = [(float(numel[key]), value) for key, value in seconds.items()]
    sizes = {size for size, _ in samples}
    if len(sizes) > 1:
        return fit_line(samples)
    return Line(0.0, statistics.median(seconds.values()) / max(1.0, *sizes) if sizes else 0.0)


def one_after_another(lines: Sequence[Line]) -> Line:
    """Return the time of collectives one after the other, each with an equal part of the bytes."""
    byte_s = sum(line.byte_s for line in lines) / max(1, len(lines))
    return Line(sum(line.start_s for line in lines), byte_s)


def fit_line(samples: Iterable[tuple[float, float]]) -> Line:
    """Return a line, with coefficients of at least 0, fitted to pairs of (size, seconds) of two or
    more different sizes. The fit minimizes the relative errors of each size's median time, because
    the times of long messages would outweigh those of short ones otherwise."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, seconds in samples:
        by_size[size].append(seconds)
    times = np.array([statistics.median(each) for each in by_size.values()])
    byte_s, start_s = np.polyfit(list(by_size), times, 1, w=1.0 / np.maximum(times, 1e-9))
    if byte_s < 0.0:
        return Line(float(np.median(times)), 0.0)
    return Line(max(0.0, float(start_s)), float(byte_s))
