"""A collective whose waits follow the watchdog's rules for time limits.

Only the seconds in which this process ran count, and where a rank is silent the limit is
``TIMES_IN_DOUBT`` times as long.
"""

from __future__ import annotations

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch.clock import TURN_S, clock
from hvd_sparse.watch.watchdog import TIMES_IN_DOUBT, Watchdog


class PatientPending:
    """A started collective, whose wait continues while the time that passed does not count."""

    def __init__(self, pending: Pending, watchdog: Watchdog) -> None:
        self._pending, self._watchdog = pending, watchdog
        self.is_done = pending.is_done  # without a second call, because it is polled

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the result within ``timeout_s`` seconds that count; see the module."""
        if timeout_s is None:
            return self._pending.wait(None)
        began_s, left_s, is_extended = clock.now_s, timeout_s, False
        while True:
            try:
                return self._pending.wait(left_s)
            except ExchangeTimeout as error:
                failure = error
            left_s = timeout_s - (clock.now_s - began_s)
            if left_s <= TURN_S and not is_extended and self._watchdog.has_silent_rank():
                is_extended, timeout_s = True, TIMES_IN_DOUBT * timeout_s
                left_s = timeout_s - (clock.now_s - began_s)
            if left_s <= TURN_S:
                raise failure


class PatientCollective:
    """A collective whose waits follow the watchdog's rules.

    Implements ``collectives.contract.Collective``.
    """

    def __init__(self, collective: Collective, watchdog: Watchdog) -> None:
        self._collective = collective
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
