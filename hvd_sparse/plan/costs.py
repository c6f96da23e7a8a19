"""Costs of messages and of computation: linear functions, fitted to all ranks' measurements."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Gatherer
from hvd_sparse.configuration import Configuration
from hvd_sparse.step.buckets import one_per_tensor
from hvd_sparse.step.group_selection import name_of
from hvd_sparse.types import Report, State, TensorSpec
from hvd_sparse.wire.message import overhead_bytes

SIZES = 5
"""Number of message lengths for which messages are timed."""
REPETITIONS = 5
"""Number of timed repetitions of each length, after one that is not timed."""
LEAST_SPREAD = 8
"""Least ratio of the longest to the shortest message, so that times differ by more than noise."""

Buckets = list[tuple[int, ...]]
Samples = list[tuple[float, list[float]]]
"""For each length of messages, the bytes that a rank receives, and each repetition's seconds."""
Numbers = Any  # a float or an array of floats


@dataclass(frozen=True)
class Line:
    """The time of a message or of computation: ``start_s + byte_s * size`` seconds. ``size`` is in
    bytes for a message, and in entries for computation."""

    start_s: float
    byte_s: float

    def __call__(self, size: Numbers) -> Numbers:
        return self.start_s + self.byte_s * size


def sizes_of(told: Sequence[Report]) -> list[int]:
    """Return the lengths, in bytes, of the messages that are to be timed. They range from the
    length of a message with only the smallest tensor to that of a message with all tensors.
    ``told`` has the measurements of all ranks."""
    shares = [nbytes for each in told for nbytes in each["nbytes"].values() if nbytes > 0]
    least = max(64.0, min(shares, default=64.0))
    most = max([least * LEAST_SPREAD, *(sum(each["nbytes"].values()) for each in told)])
    return [round(size) for size in np.geomspace(least, most, SIZES).tolist()]


def time_messages(gatherer: Gatherer, sizes: Sequence[int]) -> Samples:
    """Time allgathers of messages with the given lengths, in bytes. All ranks must call this
    function. The message of each repetition has a slightly different length, so that the time
    includes Horovod's negotiation of a new length."""
    collective, found = gatherer.collective, []
    others = max(1, collective.world_size - 1)
    for number, size in enumerate(sizes):
        times, received = [], []
        for repetition in range(1 + REPETITIONS):
            message = np.zeros(size + 8 * repetition, np.uint8)
            start_s = time.perf_counter()
            collective.allgather(message, f"{gatherer.name}.size.{number}").wait(gatherer.timeout_s)
            times.append(time.perf_counter() - start_s)
            received.append(others * message.nbytes)
        found.append((statistics.median(received), times[1:]))
    return found


class Costs:
    """Costs of an exchange by one allgather, measured on the slowest rank, because all ranks wait
    for it.

    wire : seconds of a message, as a function of the bytes that a rank receives
    work : seconds of selecting and encoding, as a function of the number of entries
    decode : seconds of decoding, as a function of the number of entries
    encode_s : with ``select_over="group"``, constant seconds of encoding each tensor, which
        ``work``, the time of a group, does not include; otherwise 0
    compressed : positions of the compressed tensors
    ready_s : by tensor name, seconds from a step's first gradient to the tensor's gradient
    nbytes : by tensor name, bytes that a rank sends
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        told: Sequence[State],
        samples: Sequence[Samples],
        buckets: Buckets,
    ) -> None:
        self.configuration, self.specs, self.buckets = configuration, specs, buckets
        self._told, self._others = told, max(1, len(told) - 1)
        # The line is fitted to the slowest rank's time of each repetition.
        pairs: list[tuple[float, float]] = []
        for at_size in zip(*samples):
            slowest = np.max(np.asarray([times for _, times in at_size], np.float64), axis=0)
            pairs += [(at_size[0][0], seconds) for seconds in slowest.tolist()]
        line = fit_line(pairs)
        # Sizes of messages are told without the headers of the messages.
        header_s = line.byte_s * overhead_bytes(0) * self._others
        self.wire = Line(line.start_s + header_s, line.byte_s)
        self._numel = {spec.key: spec.numel for spec in specs}
        self.compressed = {position for (position,) in one_per_tensor(specs, configuration)}
        self.work, self.encode_s = self._work()
        self.decode = _line(self._slowest("decode"), self._numel)
        self.ready_s, self.nbytes = self._slowest("ready"), self._slowest("nbytes")

    def families(self) -> list[list[str]]:
        """Group the tensors that have gradients in the same steps, and with ``select_over="group"``
        also the same dtype. Return the names in each group that has a compressed tensor."""
        families: dict[object, list[str]] = defaultdict(list)
        dtypes = {spec.key: spec.accumulator for spec in self.specs}
        for key, steps in self._told[0]["seen"].items():
            # With select_over="group", a group becomes one vector, which has one dtype.
            dtype = dtypes.get(key) if self.configuration.select_over == "group" else None
            families[tuple(steps), dtype].append(key)
        return [keys for keys in families.values() if self.layers(keys)]

    def layers(self, keys: Sequence[str]) -> list[int]:
        """Return the positions of the compressed tensors that ``keys`` names, in backward order."""
        wanted, specs = set(keys), self.specs
        found = [position for position in self.compressed if specs[position].key in wanted]
        # A backward pass runs in reverse order, so equal times are sorted by descending position.
        return sorted(found, key=lambda position: (self.ready_s[specs[position].key], -position))

    def received(self, sent: float) -> float:
        """Return the bytes that a rank receives of a tensor if each rank sends ``sent`` bytes."""
        return (sent + overhead_bytes(1) - overhead_bytes(0)) * self._others

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
        if self.configuration.select_over != "group":
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


def _line(seconds: Mapping[str, float], numel: Mapping[str, int]) -> Line:
    samples = [(float(numel[key]), value) for key, value in seconds.items()]
    sizes = {size for size, _ in samples}
    if len(sizes) > 1:
        return fit_line(samples)
    return Line(0.0, statistics.median(seconds.values()) / max(1.0, *sizes) if sizes else 0.0)


def fit_line(samples: Iterable[tuple[float, float]]) -> Line:
    """Return a line with coefficients of at least 0, fitted to pairs of (size, seconds) with two or
    more different sizes. The fit minimizes the relative errors at the median time of each size,
    because absolute errors of long messages would outweigh those of short ones."""
    by_size: dict[float, list[float]] = defaultdict(list)
    for size, seconds in samples:
        by_size[size].append(seconds)
    times = np.array([statistics.median(each) for each in by_size.values()])
    byte_s, start_s = np.polyfit(list(by_size), times, 1, w=1.0 / np.maximum(times, 1e-9))
    if byte_s < 0.0:
        return Line(float(np.median(times)), 0.0)
    return Line(max(0.0, float(start_s)), float(byte_s))
