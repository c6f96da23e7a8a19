"""Policy of ``Compression.auto``: send dense gradients if a trial finds that faster.

Each way (sparse, dense, fp16) in turn has warm-up steps, one step that shows whether it can win at
all, and measured steps, from the first gradient to the last result. The slowest rank's medians
decide, so that all ranks decide alike at the same step.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.errors import InvalidOption
from hvd_sparse.plan.measurements import StepClock, StepStarts
from hvd_sparse.plan.policy import EVERYTHING, SPARSE, WAYS, Owner, Policy, Verdict, tell_all
from hvd_sparse.step.records import StepRun, Ticket
from hvd_sparse.untyped import Report

logger = logging.getLogger("hvd_sparse")

TRIAL = "the trial of Compression.auto"
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


class Trial:
    """Choice of the fastest way by measurement.

    Each of ``ways``, in this order, gets ``steps`` measured steps. The choice is reviewed after
    every ``review_every`` steps; 0 for never.
    """

    def __init__(self, ways: Sequence[str], steps: int, review_every: int) -> None:
        _check(ways, steps, review_every)
        self.ways = tuple(ways)
        self._steps, self._review_every = steps, review_every
        self.restart()

    def restart(self) -> None:
        self.verdict: Verdict | None = None
        self._medians: dict[str, float] = {}
        # Keep only as many durations as a turn or a review needs.
        self._durations: deque[float] = deque(maxlen=max(RECENT, WARMUP + self._steps))
        self._turn = 0
        self._done = 0
        """Number of steps in this turn, or since the verdict."""

    def describe(self) -> Report:
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
        """Return the way of the step that begins; the last took ``last_s`` seconds, None if it
        failed."""
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
        return float(agree(np.array([np.median(durations)])).max())


def _check(ways: Sequence[str], steps: int, review_every: int) -> None:
    if isinstance(ways, str) or not ways or len(set(ways)) != len(ways):
        raise InvalidOption(f"ways is {ways!r}: give some of {', '.join(WAYS)}, each once")
    for way in ways:
        check_choice(way, "one of ways", WAYS)
    check_whole(steps, "trial_steps", 1)
    check_whole(review_every, "review_every", 0)


class Debts:
    """The steps that send residuals, by tensor; residuals must be sent before dense gradients."""

    def __init__(self) -> None:
        self._runs: dict[int, StepRun | None] = {}

    def owe(self, position: int) -> None:
        self._runs[position] = None

    def pay(self, position: int, run: StepRun) -> None:
        """Record that a step, whose success is unknown, sends a tensor's residual."""
        self._runs[position] = run

    def is_owed(self, position: int) -> bool:
        return position in self._runs

    def is_paid(self, position: int) -> bool:
        """Return whether a step that succeeded on all ranks has sent a tensor's residual."""
        run = self._runs.get(position)
        return (
            run is not None and run.is_finite and run.failure is None and position in run.completed
        )

    def settle(self, position: int) -> None:
        self._runs.pop(position, None)

    def clear(self) -> None:
        self._runs.clear()

    def recall(self) -> None:
        """Take back all payments, because the running steps were lost."""
        self._runs = dict.fromkeys(self._runs)


class Fallback(Policy):
    """Policy that follows the verdict of a trial.

    On a dense way Horovod reduces the gradients as without a compressor. Before that, one step of
    every tensor sends its residual; with ``sends_all`` every dense step sends all state.
    """

    def __init__(self, trial: Trial, *, sends_all: bool = False) -> None:
        self.trial = trial
        self.sends_all = sends_all
        self.clock = StepClock()
        self.debts = Debts()
        self._starts = StepStarts()
        self._way = SPARSE

    @property
    def verdict(self) -> Verdict | None:
        return self.trial.verdict

    def begin(self, owner: Owner, position: int | None) -> str:
        if position is None:
            return SPARSE
        if self._starts.begins(position):
            self._way = self.next_way(owner)
        if self._way == SPARSE:
            return SPARSE
        return EVERYTHING if self.sends_all or self._is_owed(position) else self._way

    def next_way(self, owner: Owner) -> str:
        """Return the way of the step that begins.  Collective at some steps."""
        before = self.verdict
        # Read the clock first, so that the collective does not count as part of the last step.
        way = self.trial.next(self.clock.begin(), lambda mine: self.agree(owner, mine))
        if self.verdict is not None and self.verdict is not before and owner.collective.rank == 0:
            logger.warning("compressor %s: %s", owner.name, self.verdict)
        self.clock.resume()
        return way

    def agree(self, owner: Owner, mine: np.ndarray) -> np.ndarray:
        """Gather every rank's float64 [n] into float64 [ranks, n].  Collective."""
        told = tell_all(owner, TRIAL, f"hvd_sparse.trial.{owner.name}", mine.tolist())
        return np.array(told, np.float64)

    def _is_owed(self, position: int) -> bool:
        # All ranks find the same, because all have the results of the last step.
        if self.debts.is_paid(position):
            self.debts.settle(position)
        return self.debts.is_owed(position)

    def sent(self, owner: Owner, position: int, ticket: Ticket) -> None:
        if ticket.bucket is None:
            return
        if self._way == SPARSE:
            self.debts.owe(position)
        else:
            self.debts.pay(position, ticket.run)

    def end(self, owner: Owner) -> None:
        self._starts.end()

    def arrived(self, owner: Owner) -> None:
        self.clock.end()

    def fail(self) -> None:
        self.clock.fail()

    def describe(self) -> dict[str, object]:
        return {"trial": self.trial.describe()}

    def loaded(self, owner: Owner, tensors: Mapping[str, object]) -> None:
        """Record the loaded residuals, so that a dense way sends them first."""
        self.debts.clear()
        for position, spec in enumerate(owner.step.specs):
            if spec.key in tensors and owner.configuration.is_sparse(spec.shape, spec.numel):
                self.debts.owe(position)

    def forget_world(self, owner: Owner) -> None:
        self.clock.restart()
        self.trial.restart()
        self.debts.recall()
        self._starts = StepStarts()
