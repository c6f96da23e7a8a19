"""The end of a step that has failed, while TensorFlow's threads are still in it."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from hvd_sparse.collectives.topology import is_elastic
from hvd_sparse.step.records import StepRun
from hvd_sparse.step.step import Step
from hvd_sparse.tensorflow.fallback import GraphFallback
from hvd_sparse.watch.ledger import Ledger

logger = logging.getLogger("hvd_sparse")

LONGEST_WAIT_S = 5.0
"""Seconds for the step's other tensors; a graph that leaves out some of the traced ones waits this
long for nothing."""


class FailingStep:
    """Undoes a step in one thread while the step's other tensors are in other threads.

    Parameters
    ----------
    step : of the compressor
    ledger : its pending tensors are cleared
    policy : notified of the failure, or None
    traced : keys of the tensors that are sent at every step of some graph
    """

    def __init__(
        self, step: Step, ledger: Ledger, policy: GraphFallback | None, traced: Collection[str]
    ) -> None:
        self._step, self._ledger, self._policy, self._traced = step, ledger, policy, traced

    def take_back(self, run: StepRun, error: Exception) -> None:
        """Take a step back, once the other ranks have this one's part in all of its exchanges."""
        self._ledger.clear()
        if is_elastic():  # Horovod's elastic run ends in silence at errors that it does not know
            logger.error("%s: %s", type(error).__name__, error)
        if self._policy is not None:
            self._policy.fail()
        run.is_raising, run.failure = True, run.failure or error
        self._wait_for_others(run)
        self._step.fail(run, error)
        run.is_raising = False

    def _wait_for_others(self, run: StepRun) -> None:
        """Wait until the step's other tensors have passed all phases.

        Once this tensor raises, TensorFlow drops operations that have not begun, and the other
        ranks would wait for them.
        """
        deadline = time.monotonic() + LONGEST_WAIT_S
        while len(run.received) < len(self._traced) and time.monotonic() < deadline:
            time.sleep(0.001)
