"""Waits that a process which stood still, or a rank that is busy, does not end.

``PatientCollective`` puts a collective's waits under the watchdog's rules: seconds count in which
this process ran, and where a rank says nothing and may be busy the limit is ``TIMES_IN_DOUBT``
times as long.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.resilience.awake import awake_s
from hvd_sparse.resilience.watchdog import TIMES_IN_DOUBT, Watchdog

SHORTEST_S = 0.05
"""Seconds that a wait must have left to go on."""


@dataclass(frozen=True)
class PatientPending:
    """A collective that was started; its wait is taken up again where the time that passed does not
    count."""

    pending: Pending
    watchdog: Watchdog

    def is_done(self) -> bool:
        """Tell whether there is nothing to wait for any more."""
        return self.pending.is_done()

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Its result; ExchangeTimeout after ``timeout_s`` seconds, or that many times more in
        doubt."""
        if timeout_s is None:
            return self.pending.wait(None)
        began_s, limit_s, left_s = awake_s(), timeout_s, timeout_s
        while True:
            try:
                return self.pending.wait(left_s)
            except ExchangeTimeout as error:
                failure = error
            left_s = limit_s - (awake_s() - began_s)
            if left_s <= SHORTEST_S and limit_s == timeout_s and self.watchdog.is_in_doubt():
                limit_s = TIMES_IN_DOUBT * timeout_s
                left_s = limit_s - (awake_s() - began_s)
            if left_s <= SHORTEST_S:
                raise failure


class PatientCollective:
    """A collective whose waits are patient.  Implements ``collectives.contract.Collective``."""

    def __init__(self, collective: Any, watchdog: Watchdog) -> None:
        self._collective: Collective = collective
        self._watchdog = watchdog

    @property
    def rank(self) -> int:
        return self._collective.rank

    @property
    def world_size(self) -> int:
        return self._collective.world_size

    @property
    def nodes(self) -> tuple[int, ...] | None:
        return self._collective.nodes

    def allgather(self, array: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.allgather(array, name), self._watchdog)

    def allreduce(self, array: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.allreduce(array, name), self._watchdog)

    def broadcast(self, array: np.ndarray, root: int, name: str) -> PatientPending:
        return PatientPending(self._collective.broadcast(array, root, name), self._watchdog)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> PatientPending:
        return PatientPending(self._collective.alltoall(array, splits, name), self._watchdog)
