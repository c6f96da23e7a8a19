"""Measurements of the first steps of a run, and of the network.

Steps are measured by the arrival times of gradients, the times of selecting, encoding and decoding,
and the bytes sent. The network is measured by timing collectives of several lengths between two
steps. All results are medians, so that single delayed steps or messages do not matter.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective
from hvd_sparse.plan.route import Route
from hvd_sparse.plan.timed_collectives import timed_collective
from hvd_sparse.untyped import Report

WARMUP = 2
"""First steps that are not measured, because first calls compile, allocate and handshake."""
STEPS = 5
"""Number of steps that are measured."""
SIZES = 5
"""Number of message lengths that are timed."""
REPETITIONS = 5
"""Repetitions of every length, after one that is not counted."""
LEAST_SPREAD = 8
"""The longest message is at least this many times the shortest, so that times differ by more than
noise."""

ITEM = 8
"""Bytes by which the lengths of repetitions differ, a multiple of the itemsize of sums."""

Samples = dict[str, list[tuple[float, list[float]]]]
"""By kind of collective, for every length: the bytes that a rank receives, and the seconds of each
repetition."""


Told = Mapping[str, Any]
"""A dict received from another rank: ``Measurements.to_dict``, or that of a decision."""


class StepStarts:
    """Detection of the first gradient of a step.

    A step starts with the first gradient after a result was requested, or with a second gradient of
    the same tensor.

    Attributes
    ----------
    is_between : whether a result was requested, and no gradient has arrived since
    """

    def __init__(self) -> None:
        self._in_step: set[int] = set()
        self.is_between = True

    def begins(self, position: int | None) -> bool:
        """Record a gradient, and return whether it is the first of its step.

        Parameters
        ----------
        position : position of its tensor; None for a tensor that is not registered
        """
        is_first = self.is_between or position in self._in_step
        if is_first:
            self._in_step.clear()
        if position is not None:
            self._in_step.add(position)
        self.is_between = False
        return is_first

    def end(self) -> None:
        """Record that a result was requested, so that the next gradient begins a step."""
        self.is_between = True


class Measurements:
    """A rank's measurements of its own steps.

    The numbers of a step are counted only after it has succeeded: those of failed steps, and of
    steps that were rolled back because of NaN, are dropped.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(list)
        self._kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._step: dict[str, dict[str, float]] = defaultdict(dict)
        self._whole_s: dict[int, float] = {}
        self._number = self._good = 0
        self._began_s = self._own_s = self._ended_s = self._told_s = 0.0

    def begin(self, now_s: float, *, was_good: bool) -> None:
        """Begin a step; count the last step's numbers if ``was_good``."""
        if was_good:
            self._good += 1
            for kind, values in self._step.items():
                for key, value in values.items():
                    self._kept[kind][key].append(value)
            for key in self._step["ready"]:
                self._seen[key].append(self._number)
            self._whole_s[self._number] = max(0.0, self._ended_s - self._began_s)
        self._step.clear()
        self._number += 1
        self._began_s, self._ended_s, self._own_s = now_s, now_s, 0.0

    def came_first(self, now_s: float) -> None:
        """Record the time of a step's first gradient, for steps that begin before it."""
        if not self._step["ready"]:
            self._began_s, self._own_s = now_s, 0.0

    def end(self, now_s: float) -> None:
        """Record the time of a result; the last one ends the step."""
        self._ended_s = now_s

    def arrive(self, key: str, now_s: float) -> None:
        """Record the time of a gradient, without the time spent in this package since the first."""
        self._step["ready"][key] = max(0.0, now_s - self._began_s - self._own_s)

    def spend(self, seconds: float) -> None:
        """Record time spent in this package, during which the backward pass did not run."""
        self._own_s += seconds

    def take_told(self) -> float:
        """Return the seconds of selecting and encoding recorded since the last call."""
        told_s, self._told_s = self._told_s, 0.0
        return told_s

    def send(self, key: str, nbytes: float) -> None:
        """Record the bytes that a tensor adds to its message."""
        self._step["nbytes"][key] = nbytes

    def listen(self, what: str, whose: str, start_s: float, end_s: float) -> None:
        """Record a span; a ``tracing.spans.Listener``."""
        kind = {"select": "work", "encode": "work", "decode": "decode"}.get(what)
        if kind is not None:
            self._step[kind][whose] = self._step[kind].get(whose, 0.0) + end_s - start_s
        if kind == "work":
            self._told_s += end_s - start_s
        if what == "encode":
            self._step["encode"][whose] = end_s - start_s

    def to_dict(self) -> Report:
        """Return the measurements as a JSON-serializable dict.

        Its entries are, by tensor, the medians of "ready", "work", "encode" (part of "work") and
        "decode" in seconds and of "nbytes", and "seen", the numbers of the steps in which the
        tensor had a gradient. If tensors are selected as one vector, "work" also has the vector's
        name. "whole" has the seconds from the first gradient to the last result by step number,
        and "steps" the number of counted steps.
        """
        medians = {
            kind: {key: statistics.median(values) for key, values in self._kept[kind].items()}
            for kind in ("ready", "work", "encode", "decode", "nbytes")
        }
        whole = {str(number): seconds for number, seconds in self._whole_s.items()}
        return {
            **medians,
            "whole": whole,
            "steps": self._good,
            "seen": {key: list(steps) for key, steps in self._seen.items()},
        }


def sizes_of(told: Sequence[Report]) -> list[int]:
    """Return the message lengths to time, in bytes, ascending, the same on every rank.

    They range from the bytes of the smallest tensor to those of all tensors together.

    Parameters
    ----------
    told : the measurements of all ranks
    """
    shares = [nbytes for each in told for nbytes in each["nbytes"].values() if nbytes > 0]
    least = max(64.0, min(shares, default=64.0))
    most = max([least * LEAST_SPREAD, *(sum(each["nbytes"].values()) for each in told)])
    return [round(size) for size in np.geomspace(least, most, SIZES).tolist()]


def time_messages(
    collective: Collective, name: str, route: Route, sizes: Sequence[int], timeout_s: float | None
) -> Samples:
    """Time the route's collectives with messages of the given lengths in bytes.  Collective.

    Lengths of repetitions differ slightly, like those of a run's messages, because Horovod
    negotiates every new length.
    """
    found: Samples = {}
    mates = route.placement.mates(route.placement.rank)
    for kind in dict.fromkeys(route.kinds):
        found[kind] = []
        for number, size in enumerate(sizes):
            times, received = [], []
            for repetition in range(1 + REPETITIONS):
                made = timed_collective(collective, kind, size + ITEM * repetition, mates)
                start_s = time.perf_counter()
                made.start(f"{name}.{kind}.{number}").wait(timeout_s)
                times.append(time.perf_counter() - start_s)
                received.append(made.received)
            found[kind].append((statistics.median(received), times[1:]))
    return found
