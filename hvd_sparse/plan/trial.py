"""Trial of the ways to average gradients (sparse, dense, fp16), in the first steps of a run.

Each way in turn has warm-up steps, one step that shows whether it can win at all, and measured
steps.  The time of a step is that of its exchange, from the first gradient to the last result.  The
ways are compared by the slowest rank's median, found by a small allgather, so that all ranks decide
alike at the same step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.errors import InvalidOption
from hvd_sparse.untyped import Report

SPARSE, FP16 = "sparse", "fp16"
WAYS = (SPARSE, "dense", FP16)
WARMUP = 2
HOPELESS = 2.0
"""A way is dropped if its first step takes longer than this factor times the best median so far."""
MARGIN = 1.1
"""Factor by which sparse must be faster than the best other way, because medians of a few steps are
uncertain, and dense is the safer choice."""
WORSE = 1.05
"""A new trial begins if the chosen way takes longer than this factor times another way's time in
the last trial."""
RECENT = 50
"""Number of last steps whose median a review compares."""

Agree = Callable[[np.ndarray], np.ndarray]
"""Collective that gathers float64 [n] of every rank into float64 [ranks, n]."""


@dataclass(frozen=True)
class Verdict:
    """Result of a trial.

    Attributes
    ----------
    way : the chosen way: "sparse", "dense" or "fp16"
    seconds : the slowest rank's median step time by way, in seconds
    """

    way: str
    seconds: dict[str, float]

    def __str__(self) -> str:
        told = ", ".join(f"{way} {1e3 * seconds:.1f} ms" for way, seconds in self.seconds.items())
        words = {
            SPARSE: "gradients are sent sparse",
            "dense": "compression does not pay here: gradients are sent dense, as float32",
            "fp16": "compression does not pay here: gradients are sent dense, as float16",
        }
        return f"{words[self.way]} (time of a step's exchange: {told})"


class Trial:
    """Choice of the fastest way by measurement.

    Parameters
    ----------
    ways : the ways to try, in this order; the first is always measured completely
    steps : number of measured steps of each way
    review_every : number of steps after which the choice is reviewed; 0 for never
    """

    def __init__(self, ways: Sequence[str], steps: int, review_every: int) -> None:
        _check(ways, steps, review_every)
        self.ways = tuple(ways)
        self._steps, self._review_every = steps, review_every
        self.restart()

    def restart(self) -> None:
        """Discard all measurements and start a new trial."""
        self.verdict: Verdict | None = None
        self._medians: dict[str, float] = {}
        # Keep only as many durations as a turn or a review needs.
        self._durations: deque[float] = deque(maxlen=max(RECENT, WARMUP + self._steps))
        self._turn = 0
        self._done = 0
        """Number of steps in this turn, or since the verdict."""

    def describe(self) -> Report:
        """Return the options, which must be equal on all ranks, JSON-serializable."""
        return {
            "ways": list(self.ways),
            "trial_steps": self._steps,
            "review_every": self._review_every,
        }

    @property
    def is_timed(self) -> bool:
        """Whether the time of the current step is needed."""
        left = (
            self._review_every - self._done % self._review_every
            if self._review_every
            else RECENT + 1
        )
        return self.verdict is None or left <= RECENT

    def next(self, last_s: float | None, agree: Agree) -> str:
        """Return the way of the step that begins.

        All ranks must call it at every step, because it calls ``agree`` at some of them.  The last
        step took ``last_s`` seconds; None if there was none, or if it failed.
        """
        if last_s is not None:
            self._durations.append(last_s)
            self._done += 1
        if self.verdict is None:
            self._try(agree)
        elif self._review_every and self._done and self._done % self._review_every == 0:
            self._review(agree)
        return self.ways[self._turn] if self.verdict is None else self.verdict.way

    def _try(self, agree: Agree) -> None:
        """End the turn of a way once it is measured, or too slow to win."""
        measured = self._done - WARMUP
        is_probed = measured == 1 and self._medians
        if not is_probed and measured < self._steps:
            return
        median = self._slowest(agree, list(self._durations)[WARMUP:])
        if measured < self._steps and median < HOPELESS * min(self._medians.values()):
            return
        self._medians[self.ways[self._turn]] = median
        self._durations.clear()
        self._done = 0
        self._turn += 1
        if self._turn == len(self.ways):  # every way has had its turn
            self.verdict = Verdict(self._fastest(), dict(self._medians))
            self._turn = 0

    def _fastest(self) -> str:
        """Return the way with the least median; sparse must win by MARGIN."""
        weighted = {
            way: median * (MARGIN if way == SPARSE else 1.0)
            for way, median in self._medians.items()
        }
        return min(weighted, key=weighted.__getitem__)

    def _review(self, agree: Agree) -> None:
        """Begin a new trial if the chosen way has become slower than another one was."""
        assert self.verdict is not None
        now = self._slowest(agree, list(self._durations)[-RECENT:])
        others = [
            seconds for way, seconds in self.verdict.seconds.items() if way != self.verdict.way
        ]
        if others and now > WORSE * min(others):
            self.restart()

    def _slowest(self, agree: Agree, durations: list[float]) -> float:
        """Return the slowest rank's median, in seconds.  Collective."""
        return float(agree(np.array([np.median(durations)])).max())


def _check(ways: Sequence[str], steps: int, review_every: int) -> None:
    if isinstance(ways, str) or not ways or len(set(ways)) != len(ways):
        raise InvalidOption(f"ways is {ways!r}: give some of {', '.join(WAYS)}, each once")
    for way in ways:
        check_choice(way, "one of ways", WAYS)
    check_whole(steps, "trial_steps", 1)
    check_whole(review_every, "review_every", 0)
