"""Going dense where that is quicker: measured in a run, decided alike on all ranks."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import numpy as np

from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.plan.measurements import StepStarts
from hvd_sparse.plan.policy import EVERYTHING, Owner, Policy
from hvd_sparse.plan.trial import SPARSE, Trial, Verdict
from hvd_sparse.step.records import StepRun, Ticket

logger = logging.getLogger("hvd_sparse")

TRIAL = "what ranks tell each other for Compression.auto"


class Debts:
    """The tensors that keep something back, and the steps that send it.

    A dense way must leave nothing behind.
    """

    def __init__(self) -> None:
        self._runs: dict[int, StepRun | None] = {}

    def owe(self, position: int) -> None:
        """Note that a step of a tensor keeps something back."""
        self._runs[position] = None

    def pay(self, position: int, run: StepRun) -> None:
        """Note that a step sends everything; what becomes of it is to be seen."""
        self._runs[position] = run

    def is_owed(self, position: int) -> bool:
        """Tell whether something is kept back that no step is known to have sent."""
        return position in self._runs

    def is_paid(self, position: int) -> bool:
        """Tell whether a step that all ranks found good has sent everything."""
        run = self._runs.get(position)
        return (
            run is not None and run.is_finite and run.failure is None and position in run.completed
        )

    def settle(self, position: int) -> None:
        """Forget a tensor that is paid, as all ranks know."""
        self._runs.pop(position, None)

    def clear(self) -> None:
        """Forget all tensors."""
        self._runs.clear()

    def recall(self) -> None:
        """Take back every payment: what was being sent has gone nowhere."""
        self._runs = dict.fromkeys(self._runs)


class StepClock:
    """Clock of a step, from its first gradient to its last result."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew, as before the first step."""
        self._began: float | None = None
        self._ended: float | None = None
        self._has_failed = False

    def begin(self) -> float | None:
        """Begin a step, and return the seconds that the last one took.

        It ends now if nobody has said when it ended. None where there was none, or it failed; the
        same on all ranks, as all hear of a failure.
        """
        now = time.perf_counter()
        last_s = None
        if self._began is not None and not self._has_failed:
            last_s = (now if self._ended is None else self._ended) - self._began
        self._began, self._ended, self._has_failed = now, None, False
        return last_s

    def resume(self) -> None:
        """Begin the step again: what held it up was not its own."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """Note that a result is there; the step's last one ends it."""
        self._ended = time.perf_counter()

    def fail(self) -> None:
        """Note that the step is taken back."""
        self._has_failed = True


class Fallback(Policy):
    """Policy that goes the way that a trial says.

    On a dense way gradients are Horovod's own business, without a copy and without a carrier; but
    first every tensor has one step that sends its residual along.

    Parameters
    ----------
    trial : the ways and their measures
    sends_all : the memory does an optimizer's work: every dense step sends all that it has
    """

    def __init__(self, trial: Trial, *, sends_all: bool = False) -> None:
        self.trial = trial
        self.sends_all = sends_all
        self.clock = StepClock()
        self.debts = Debts()
        self._starts = StepStarts()
        self._way = SPARSE

    @property
    def verdict(self) -> Verdict | None:  # type: ignore[override]
        """Return the result of the last trial; None until one has ended."""
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
        """Return the way of the step that begins.

        All ranks call it at each step, and it may be collective.
        """
        before = self.verdict
        # The clock is read first: bringing the ranks together must not count as the last step.
        way = self.trial.next(self.clock.begin(), lambda mine: self.agree(owner, mine))
        if self.verdict is not None and self.verdict is not before and owner.collective.rank == 0:
            logger.warning("compressor %s: %s", owner.name, self.verdict)
        self.clock.resume()
        return way

    def agree(self, owner: Owner, mine: np.ndarray) -> np.ndarray:
        """Return the numbers of all ranks, float64 [ranks, n]: see ``tell_all``."""
        return tell_all(owner, mine)

    def _is_owed(self, position: int) -> bool:
        """Tell whether a residual has not yet been sent."""
        # All results of the last step are there, on all ranks: so all find the same.
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
        """Let a dense way send what was loaded, too."""
        self.debts.clear()
        for position, spec in enumerate(owner.step.specs):
            if spec.key in tensors and owner.configuration.is_sparse(spec.shape, spec.numel):
                self.debts.owe(position)

    def forget_world(self, owner: Owner) -> None:
        self.clock.restart()
        self.trial.restart()
        self.debts.recall()
        self._starts = StepStarts()


def tell_all(owner: Owner, mine: np.ndarray) -> np.ndarray:
    """Return every rank's float64 [n] as float64 [ranks, n].  Collective."""
    ledger = owner.watchdog.ledger
    ledger.begin(TRIAL)
    try:
        with ledger.waiting():
            name = f"hvd_sparse.trial.{owner.name}"
            pending = owner.collective.allgather(mine.view(np.uint8), name)
            gathered = pending.wait(owner.limit_s)
    except ExchangeTimeout as error:
        raise owner.explain(error) from error
    finally:
        ledger.end(TRIAL)
    return np.frombuffer(gathered.tobytes(), np.float64).reshape(-1, mine.size)
