"""Policy of ``Compression.auto``: send dense gradients if a trial finds that faster."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import numpy as np

from hvd_sparse.plan.measurements import StepClock, StepStarts
from hvd_sparse.plan.policy import EVERYTHING, Owner, Policy, tell_all
from hvd_sparse.plan.trial import SPARSE, Trial, Verdict
from hvd_sparse.step.records import StepRun, Ticket

logger = logging.getLogger("hvd_sparse")

TRIAL = "the trial of Compression.auto"


class Debts:
    """The tensors that have residuals, and the steps that send the residuals.

    Residuals must be sent before gradients are sent dense, or they would be lost.
    """

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

    On a dense way Horovod reduces the gradients as without a compressor, and nothing is copied.
    Before that, one step of every tensor sends its residual.

    Parameters
    ----------
    trial : the ways and their measured times
    sends_all : whether every dense step sends all state, because the memory does an optimizer's
        work
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
