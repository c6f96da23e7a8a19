"""Search for the fastest way of averaging gradients, in the first steps of a run.

Every way has its turn: some steps to warm up, one to see whether it can win at all, and some that
are measured.  The time of a step is that of its exchange: from the first gradient that is handed
over to the last that is given back.  Of every way the slowest rank's median counts, told by one
small allgather, so that all ranks decide alike at the same step.
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
"""Times the best median so far: a way whose first step takes longer is tried no further."""
MARGIN = 1.1
"""By how much sparse has to beat the best other way: medians of a few steps are no surer, and dense
has less to lose."""
WORSE = 1.05
"""Times what another way took in the trial: if the way that was chosen takes longer, there is
another trial."""
RECENT = 50

Agree = Callable[[np.ndarray], np.ndarray]
"""float64 [n] of this rank to float64 [ranks, n]: collective."""


@dataclass(frozen=True)
class Verdict:
    """Result of a trial.

    Attributes
    ----------
    way : "sparse", "dense" or "fp16"
    seconds : of every way that was tried, the slowest rank's median
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
        return f"{words[self.way]} (a step's exchange: {told})"


class Trial:
    """Choice of the way that every step goes.

    Parameters
    ----------
    ways : to be tried, in this order; the first is measured to the end
    steps : measured, of each
    review_every : steps after which the way that was chosen is looked at again; 0 for never
    """

    def __init__(self, ways: Sequence[str], steps: int, review_every: int) -> None:
        _check(ways, steps, review_every)
        self.ways = tuple(ways)
        self._steps, self._review_every = steps, review_every
        self.restart()

    def restart(self) -> None:
        """Forget what was found: the ranks or the network are others."""
        self.verdict: Verdict | None = None
        self._medians: dict[str, float] = {}
        # Runs are long: no more is kept than a turn, or a review, looks at.
        self._durations: deque[float] = deque(maxlen=max(RECENT, WARMUP + self._steps))
        self._turn = 0
        self._done = 0
        """Steps of this turn, or since the verdict."""

    def describe(self) -> Report:
        """Return what must be the same on all ranks, JSON-able."""
        return {
            "ways": list(self.ways),
            "trial_steps": self._steps,
            "review_every": self._review_every,
        }

    @property
    def is_timed(self) -> bool:
        """Tell whether anybody will ask what the step that has begun takes."""
        left = (
            self._review_every - self._done % self._review_every
            if self._review_every
            else RECENT + 1
        )
        return self.verdict is None or left <= RECENT

    def next(self, last_s: float | None, agree: Agree) -> str:
        """Return the way of the step that begins.

        All ranks call it at each step, and it may be collective.

        Parameters
        ----------
        last_s : seconds of the last step; None if there was none, or it failed
        agree : brings the numbers of all ranks together
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
        """End the turn of a way, once it is measured or hopeless."""
        measured = self._done - WARMUP
        # The first way is measured to the end: there is nothing yet to be hopeless against.
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
        """Return the way with the least median; sparse has to win by a margin."""
        weighted = {
            way: median * (MARGIN if way == SPARSE else 1.0)
            for way, median in self._medians.items()
        }
        return min(weighted, key=weighted.__getitem__)

    def _review(self, agree: Agree) -> None:
        """Begin another trial where the chosen way has become slower than another one was."""
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
        raise InvalidOption(f"ways is {ways!r}: some of {', '.join(WAYS)}, each once")
    for way in ways:
        check_choice(way, "one of ways", WAYS)
    check_whole(steps, "trial_steps", 1)
    check_whole(review_every, "review_every", 0)
