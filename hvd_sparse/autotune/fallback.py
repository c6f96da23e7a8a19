"""Compressors that measure whether they are worth while, and step aside where they are not: what
both frontends share."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hvd_sparse.autotune.trial import WAYS, Trial, Verdict
from hvd_sparse.compatibility import PLANNED
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.step.records import StepRun
from hvd_sparse.errors import ExchangeTimeout, InvalidOption
from hvd_sparse.frontend.durable import DurableCompressor
from hvd_sparse.resilience.state_check import IncompatibleKeys
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.types import TensorSpec

logger = logging.getLogger("hvd_sparse")

TRIAL = "what ranks tell each other for Compression.auto"


class AutoMethod:
    """``Compression.auto``, of both frontends."""

    @classmethod
    def _create_auto(
        cls,
        params: Any,
        configuration: Configuration,
        process_set: Any,
        grad_scaler: Any,
        trial: Trial,
    ) -> Any:
        raise NotImplementedError

    @classmethod
    def auto(
        cls,
        params: Any,
        *,
        density: float = 0.001,
        ways: Sequence[str] = WAYS,
        trial_steps: int = 5,
        review_every: int = 500,
        process_set: Any = None,
        grad_scaler: Any = None,
        **options: Any,
    ) -> Any:
        """LDTE-BS where that is faster than dense float32 and float16 here, measured in the first
        steps; else these.

        ways : what is tried: "sparse", "dense", "fp16" (as ``hvd.Compression.fp16``); leave out
            what must not be
        trial_steps : measured, of each way, after two to warm up
        review_every : steps after which the choice is looked at again; 0 for never
        options : the common ones; the codec is "block16" unless told otherwise

        What was found, and why, is logged by rank 0, and is ``compressor.verdict``.
        """
        if options.pop("optimizer", None) is not None:
            raise InvalidOption(
                "auto cannot step aside once a memory does the optimizer's work: leave out "
                "optimizer=, or use ldte_bs"
            )
        options = {"codec": "block16", **options}
        configuration = Configuration.create(selector=LdteBs(density), **options)
        if configuration.memory.finishes:
            raise InvalidOption(
                f"auto cannot step aside for memory {configuration.memory!r}, which is the "
                "optimizer's momentum"
            )
        if configuration.groups == PLANNED:
            raise InvalidOption(
                "groups is 'planned', and auto measures its ways in the same steps: leave one of "
                "them out, or give auto the "
                "groups that a planned run has logged"
            )
        return cls._create_auto(
            params, configuration, process_set, grad_scaler, Trial(ways, trial_steps, review_every)
        )


class Debts:
    """The tensors that keep something back, which a dense way must not leave behind, and the step
    that sends it."""

    def __init__(self) -> None:
        self._runs: dict[int, StepRun | None] = {}

    def owe(self, position: int) -> None:
        """A step of a tensor keeps something back."""
        self._runs[position] = None

    def pay(self, position: int, run: StepRun) -> None:
        """A step sends everything; what becomes of it is to be seen."""
        self._runs[position] = run

    def is_owed(self, position: int) -> bool:
        """Whether something is kept back that no step is known to have sent: see ``settle``."""
        return position in self._runs

    def is_paid(self, position: int) -> bool:
        """Whether a step that all ranks found good has sent everything."""
        run = self._runs.get(position)
        return (
            run is not None and run.is_finite and run.failure is None and position in run.completed
        )

    def settle(self, position: int) -> None:
        """It is paid, and all ranks know."""
        self._runs.pop(position, None)

    def clear(self) -> None:
        """Nobody owes anything."""
        self._runs.clear()

    def recall(self) -> None:
        """What was being sent has gone nowhere."""
        self._runs = dict.fromkeys(self._runs)


class StepClock:
    """What the last step took, from its first gradient to its last result."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """As before the first step."""
        self._began: float | None = None
        self._ended: float | None = None
        self._has_failed = False

    def begin(self) -> float | None:
        """A step begins: the seconds that the last one took, to this moment if nobody has said when
        it ended.  None where there was none, or it failed; the same on all ranks, as all hear of a
        failure."""
        now = time.perf_counter()
        last_s = None
        if self._began is not None and not self._has_failed:
            last_s = (now if self._ended is None else self._ended) - self._began
        self._began, self._ended, self._has_failed = now, None, False
        return last_s

    def resume(self) -> None:
        """The step that has begun was held up by what is not its own."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """A result is there; the step's last one ends it."""
        self._ended = time.perf_counter()

    def fail(self) -> None:
        """The step is taken back."""
        self._has_failed = True


class SteppingAside(DurableCompressor):
    """Base of the compressors that ``Compression.auto`` makes, before the frontend's own."""

    def _begin_trial(self, trial: Trial) -> None:
        """Called by the constructor."""
        self._trial = trial
        self._clock = StepClock()
        self._debts = Debts()

    @property
    def verdict(self) -> Verdict | None:
        """What the last trial found; None until one has ended."""
        return self._trial.verdict

    def _next_way(self) -> str:
        """The way of the step that begins.  Called by all ranks at each step; it may be
        collective."""
        before = self.verdict
        way = self._trial.next(self._clock.begin(), self._agree)
        if self.verdict is not None and self.verdict is not before and self.collective.rank == 0:
            logger.warning("compressor %s: %s", self.name, self.verdict)
        self._clock.resume()
        return way

    def _agree(self, mine: np.ndarray) -> np.ndarray:
        """float64 [n] of this rank to float64 [ranks, n]."""
        ledger = self.watchdog.ledger
        ledger.begin(TRIAL)
        try:
            with ledger.waiting():
                pending = self.collective.allgather(
                    mine.view(np.uint8), f"hvd_sparse.trial.{self.name}"
                )
                gathered = pending.wait(self._limit_s)
        except ExchangeTimeout as error:
            self._explain(error)
        finally:
            ledger.end(TRIAL)
        return np.frombuffer(gathered.tobytes(), np.float64).reshape(-1, mine.size)

    def _describe(self, specs: Sequence[TensorSpec]) -> dict[str, Any]:
        return {**super()._describe(specs), "trial": self._trial.describe()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        found = super().load_state_dict(state, strict)
        keys = state["tensors"]  # a dense way is to send what was loaded, too
        self._debts.clear()
        for position, spec in enumerate(self.step.specs):
            if spec.key in keys and self.configuration.is_sparse(spec.shape, spec.numel):
                self._debts.owe(position)
        return found

    def _forget_world(self) -> None:
        super()._forget_world()
        self._clock.restart()
        self._trial.restart()
        self._debts.recall()
