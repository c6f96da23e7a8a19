"""A collective whose waits follow the watchdog's rules for time limits.

Only the seconds in which this process ran count, and where a rank says nothing and may be busy the
limit is ``TIMES_IN_DOUBT`` times as long.
"""

from __future__ import annotations

from time import monotonic

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending
from hvd_sparse.errors import ExchangeTimeout
from hvd_sparse.watch.awake_clock import age_s
from hvd_sparse.watch.watchdog import TIMES_IN_DOUBT, Watchdog

SHORTEST_S = 0.05
"""Seconds left of the limit at which a wait is over."""


class PatientPending:
    """A started collective, whose wait goes on where the time that passed does not count.

    Parameters
    ----------
    pending : the started collective
    watchdog : tells whether a rank may be busy

    Attributes
    ----------
    is_done : tells whether the result is there
    """

    def __init__(self, pending: Pending, watchdog: Watchdog) -> None:
        self._pending, self._watchdog = pending, watchdog
        self.is_done = pending.is_done  # asked again and again

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the result.

        Parameters
        ----------
        timeout_s : seconds that count; ``TIMES_IN_DOUBT`` times as many where a rank may be busy

        Raises
        ------
        ExchangeTimeout
            If the result does not come in time.
        """
        if timeout_s is None:
            return self._pending.wait(None)
        began_s, limit_s, left_s = monotonic(), timeout_s, timeout_s
        while True:
            try:
                return self._pending.wait(left_s)
            except ExchangeTimeout as error:
                failure = error
            left_s = limit_s - age_s(began_s)
            if left_s <= SHORTEST_S and limit_s == timeout_s and self._watchdog.is_in_doubt():
                limit_s = TIMES_IN_DOUBT * timeout_s
                left_s = limit_s - age_s(began_s)
            if left_s <= SHORTEST_S:
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
        """Return the rank of this process in the process set."""
        return self._collective.rank

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the process set."""
        return self._collective.world_size

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Return the node of every rank; None where that is not known."""
        return self._collective.nodes

    def allgather(self, array: np.ndarray, name: str) -> PatientPending:
        """Start an allgather of 1-D arrays."""
        return PatientPending(self._collective.allgather(array, name), self._watchdog)

    def allreduce(self, array: np.ndarray, name: str) -> PatientPending:
        """Start a sum over all ranks."""
        return PatientPending(self._collective.allreduce(array, name), self._watchdog)

    def broadcast(self, array: np.ndarray, root: int, name: str) -> PatientPending:
        """Start a broadcast of rank ``root``'s array."""
        return PatientPending(self._collective.broadcast(array, root, name), self._watchdog)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> PatientPending:
        """Start an alltoall in which ``splits[r]`` entries go to rank r."""
        return PatientPending(self._collective.alltoall(array, splits, name), self._watchdog)
