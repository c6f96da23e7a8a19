"""Measures a rank's steps. Results are medians, because one delayed step hardly changes a
median."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict, deque

from hvd_sparse.tracing import Span
from hvd_sparse.types import Report

WARMUP = 2
"""Number of first steps that are not measured, because they include compilation and allocation."""
STEPS = 5
"""Number of steps that are measured."""
WINDOW = 20
"""Number of steps in a window; the median step times of windows are compared."""
SETTLING = 5
"""Number of steps after a decision that are not timed."""
REVIEW_EVERY = 500
"""Number of steps from the end of one window to the end of the next."""
FACTOR = 1.5
"""Step times have changed if a window's median differs from the first by more than this factor."""


class StepClock:
    """Times steps, from the first gradient to the last result. A new step begins with the first
    gradient after a result was requested (``is_between``), or with a tensor's second gradient."""

    def __init__(self) -> None:
        self._in_step: set[int] = set()
        self.is_between = True
        self.restart()

    def begins(self, position: int | None) -> bool:
        """Record the arrival of a gradient, and return whether it is the first of its step."""
        is_first = self.is_between or position in self._in_step
        if is_first:
            self._in_step.clear()
        if position is not None:
            self._in_step.add(position)
        self.is_between = False
        return is_first

    def request(self) -> None:
        self.is_between = True

    def restart(self) -> None:
        self._began: float | None = None
        self._ended: float | None = None
        self._has_failed = False

    def begin(self) -> float | None:
        """Begin a step. Return the previous step's seconds; None if there was no previous step, or
        if it failed."""
        now = time.perf_counter()
        last_s = None
        if self._began is not None and not self._has_failed:
            last_s = (now if self._ended is None else self._ended) - self._began
        self._began, self._ended, self._has_failed = now, None, False
        return last_s

    def resume(self) -> None:
        """Restart the timer of the current step, so that its time excludes the comparison with
        other ranks."""
        self._began = time.perf_counter()

    def end(self) -> None:
        self._ended = time.perf_counter()

    def fail(self) -> None:
        self._has_failed = True


class Departure:
    """Detects whether step times change after a decision. It compares the median step time of later
    windows (``WINDOW`` steps) with that of the first window."""

    def __init__(self) -> None:
        self.first_s: float | None = None
        self._left = SETTLING + WINDOW
        self._times: deque[float] = deque(maxlen=WINDOW)

    @property
    def is_due(self) -> bool:
        """Whether a window has ended, so that the ranks must compare their medians."""
        return self._left == 0

    @property
    def median_s(self) -> float:
        return statistics.median(self._times) if self._times else 0.0

    def begin(self, last_s: float | None) -> None:
        if last_s is not None:
            self._times.append(last_s)
        self._left -= 1

    def judge(self, slowest_s: float) -> bool:
        """Return whether the slowest rank's median step time, ``slowest_s``, differs from that of
        the first window by more than ``FACTOR``."""
        self._left = REVIEW_EVERY
        if self.first_s is None:
            self.first_s = slowest_s or None
            return False
        is_as_at_first = self.first_s / FACTOR <= slowest_s <= self.first_s * FACTOR
        return slowest_s > 0.0 and not is_as_at_first


class Measurements:
    """A rank's measurements of its own steps. Steps that failed or were rolled back are dropped."""

    def __init__(self) -> None:
        self._seen: dict[str, list[int]] = defaultdict(list)
        self._kept: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        self._step: dict[str, dict[str, float]] = defaultdict(dict)
        self._whole_s: dict[int, float] = {}
        self._number = 0
        self._began_s = self._own_s = self._ended_s = 0.0
        self.told_s = 0.0
        """Seconds of selecting and encoding since the last call of ``spend``."""

    def begin(self, now_s: float, *, was_good: bool) -> None:
        if was_good:
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
        """Called with each gradient in graphs of TensorFlow. With a step's first gradient, restart
        the step's time, because in graphs ``begin`` runs before this gradient arrives."""
        if not self._step["ready"]:
            self._began_s, self._own_s = now_s, 0.0

    def end(self, now_s: float) -> None:
        self._ended_s = now_s

    def arrive(self, key: str, now_s: float) -> None:
        """Record when a gradient arrived, in seconds since the step's first gradient, without the
        time that this package spent in between."""
        self._step["ready"][key] = max(0.0, now_s - self._began_s - self._own_s)

    def spend(self, seconds: float) -> None:
        self._own_s += seconds
        self.told_s = 0.0

    def send(self, key: str, nbytes: float) -> None:
        self._step["nbytes"][key] = nbytes

    def listen(self, span: Span) -> None:
        if span.kind == "exchange":
            return
        kind = "decode" if span.kind == "decode" else "work"
        key, seconds = span.keys[0], span.end_s - span.start_s
        self._step[kind][key] = self._step[kind].get(key, 0.0) + seconds
        if kind == "work":
            self.told_s += seconds
        if span.kind == "encode":
            self._step["encode"][key] = seconds

    def to_dict(self) -> Report:
        """Return a JSON-serializable dict. All but "seen", "whole" and "steps" are medians over the
        steps, by tensor name. If one selection is made over a group, "work" has its seconds by the
        group's name.

        "ready" : seconds from the step's first gradient to the tensor's gradient, without this
            package's work
        "work" : seconds of selecting and encoding
        "encode", "decode" : seconds of encoding and of decoding
        "nbytes" : bytes sent
        "seen" : by tensor name, the numbers of the steps in which the tensor had a gradient
        "whole" : seconds of each step, by the step's number
        "steps" : number of steps that succeeded
        """
        medians = {
            kind: {key: statistics.median(values) for key, values in self._kept[kind].items()}
            for kind in ("ready", "work", "encode", "decode", "nbytes")
        }
        whole = {str(number): seconds for number, seconds in self._whole_s.items()}
        return {**medians, "whole": whole, "steps": len(whole), "seen": dict(self._seen)}
