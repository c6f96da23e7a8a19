"""Measurements in the first steps of a run, and of the network between two of them.

Of the steps: when gradients come, the seconds of selecting and coding, the bytes that are sent. Of
the network, with these ranks: the seconds of the collectives, timed in one go. All of it is
medians, so that a step or a message that was held up by something else has no say.
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
"""Steps before anything counts: first calls compile, allocate and shake hands."""
STEPS = 5
"""Steps that are measured."""
SIZES = 5
"""Lengths of message that are timed."""
REPETITIONS = 5
"""Of every length, after one that does not count."""
LEAST_SPREAD = 8
"""The longest message timed is at least so many times the shortest, or their times would differ by
noise alone."""

ITEM = 8
"""Bytes by which they differ: sums are of whole numbers of entries."""

Samples = dict[str, list[tuple[float, list[float]]]]
"""By kind of collective and length: bytes that a rank receives, and the seconds of every
repetition."""


Told = Mapping[str, Any]
"""What another rank tells: ``Measurements.to_dict``, or a decision's.  Any, as it is JSON."""


class StepStarts:
    """Distinction of a step's first gradient from the others.

    It is told by what has come since the last result was asked for.

    Attributes
    ----------
    is_between : a result was asked for, and no gradient has come since
    """

    def __init__(self) -> None:
        self._in_step: set[int] = set()
        self.is_between = True

    def begins(self, position: int | None) -> bool:
        """Tell whether the gradient that is handed over is its step's first.

        Parameters
        ----------
        position : of its tensor; None for one that is no known tensor's
        """
        is_first = self.is_between or position in self._in_step
        if is_first:
            self._in_step.clear()
        if position is not None:
            self._in_step.add(position)
        self.is_between = False
        return is_first

    def end(self) -> None:
        """Note that a result is asked for: whatever comes next begins a step."""
        self.is_between = True


class Measurements:
    """Measurements that a rank makes of its own steps.

    A step's numbers are kept apart until it is known to have ended well: of one that failed, or
    that NaN has taken back, none count.
    """

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(list)
        self._kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._step: dict[str, dict[str, float]] = defaultdict(dict)
        self._whole_s: dict[int, float] = {}
        self._number = self._good = 0
        self._began_s = self._own_s = self._ended_s = self._told_s = 0.0

    def begin(self, now_s: float, *, was_good: bool) -> None:
        """Begin a step; ``was_good`` says of the last one whether its numbers count."""
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
        """Note when a step's first gradient came, where the step was begun before."""
        if not self._step["ready"]:
            self._began_s, self._own_s = now_s, 0.0

    def end(self, now_s: float) -> None:
        """Note that a result is given back; the step's last one ends it."""
        self._ended_s = now_s

    def arrive(self, key: str, now_s: float) -> None:
        """Note that a gradient is handed over: when, less what this package did since the step's
        first."""
        self._step["ready"][key] = max(0.0, now_s - self._began_s - self._own_s)

    def spend(self, seconds: float) -> None:
        """Note that this package was at work, and the backward pass was not."""
        self._own_s += seconds

    def take_told(self) -> float:
        """Return the seconds of selecting and encoding that spans told since the last call."""
        told_s, self._told_s = self._told_s, 0.0
        return told_s

    def send(self, key: str, nbytes: float) -> None:
        """Note the bytes that a tensor adds to its message."""
        self._step["nbytes"][key] = nbytes

    def listen(self, what: str, whose: str, start_s: float, end_s: float) -> None:
        """Note a span, as a ``tracing.spans.Listener``."""
        kind = {"select": "work", "encode": "work", "decode": "decode"}.get(what)
        if kind is not None:
            self._step[kind][whose] = self._step[kind].get(whose, 0.0) + end_s - start_s
        if kind == "work":
            self._told_s += end_s - start_s
        if what == "encode":
            self._step["encode"][whose] = end_s - start_s

    def to_dict(self) -> Report:
        """Return what was measured, JSON-able.

        By tensor there are the medians of "ready", "work", "encode" (which is part of "work"),
        "decode" (seconds) and "nbytes", and "seen", the numbers of the steps that brought it.
        Where tensors are selected from as one vector, "work" has the vector's name, too. "whole"
        has the seconds from first gradient to last result, by the step's number, and "steps" how
        many counted in all.
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
    """Return the lengths of message to time, in bytes, ascending.

    They go from the smallest tensor's share to what all send together, and are the same on every
    rank.

    Parameters
    ----------
    told : what all ranks have measured
    """
    shares = [nbytes for each in told for nbytes in each["nbytes"].values() if nbytes > 0]
    least = max(64.0, min(shares, default=64.0))
    most = max([least * LEAST_SPREAD, *(sum(each["nbytes"].values()) for each in told)])
    return [round(size) for size in np.geomspace(least, most, SIZES).tolist()]


def time_messages(
    collective: Collective, name: str, route: Route, sizes: Sequence[int], timeout_s: float | None
) -> Samples:
    """Return this rank's seconds in the route's collectives.  Collective.

    Every rank submits so many bytes.
    No two messages are of one length, as those of a run hardly ever are: Horovod agrees anew on
    what it has not seen.
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
