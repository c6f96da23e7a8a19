"""Contract of the collectives that exchanges are made of: four calls, a rank and a size.

``hvd_sparse.collectives`` implements it over Horovod, torch.distributed, mpi4py and threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Union

import numpy as np


class Pending(Protocol):
    """A collective that was started."""

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the result.

        Parameters
        ----------
        timeout_s : seconds to wait; None waits for ever

        Raises
        ------
        ExchangeTimeout : the collective did not finish in time
        """

    def is_done(self) -> bool:
        """Tell whether ``wait`` would return at once."""


class Collective(Protocol):
    """The calls that run between ranks.  Every rank makes the same calls with the same names.

    Submitted arrays must stay untouched until the result is there.
    """

    @property
    def rank(self) -> int:
        """Return this process's rank in the process set."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the process set, now."""

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Return the node of every rank, as any number, the same on all ranks; None if unknown."""

    def allgather(self, array: np.ndarray, name: str) -> Pending:
        """Join the 1-D arrays of all ranks in rank order; lengths may differ."""

    def allreduce(self, array: np.ndarray, name: str) -> Pending:
        """Sum arrays of one shape over all ranks."""

    def broadcast(self, array: np.ndarray, root: int, name: str) -> Pending:
        """Return the array of rank ``root`` on all ranks, which give one shape."""

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> Pending:
        """Send ``splits[r]`` entries of a 1-D array to rank r, and join those that arrive in rank
        order."""


@dataclass(frozen=True)
class AllGather:
    """A request of an exchange for an allgather.

    Attributes
    ----------
    array : 1-D, this rank's part
    """

    array: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        """Start the allgather under this name."""
        return collective.allgather(self.array, name)


@dataclass(frozen=True)
class AllReduce:
    """A request of an exchange for a sum.

    Attributes
    ----------
    array : this rank's summand
    """

    array: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        """Start the sum under this name."""
        return collective.allreduce(self.array, name)


@dataclass(frozen=True)
class Broadcast:
    """A request of an exchange for one rank's array.

    Attributes
    ----------
    array : of the result's shape; its entries count on the root alone
    root : rank whose array all get
    """

    array: np.ndarray
    root: int

    def start(self, collective: Collective, name: str) -> Pending:
        """Start the broadcast under this name."""
        return collective.broadcast(self.array, self.root, name)


@dataclass(frozen=True)
class AllToAll:
    """A request of an exchange for a part of every rank's array.

    Attributes
    ----------
    array : 1-D, the parts for ranks 0, 1, ... one after the other
    splits : int32 [world_size], entries of each part
    """

    array: np.ndarray
    splits: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        """Start the alltoall under this name."""
        return collective.alltoall(self.array, self.splits, name)


Request = Union[AllGather, AllReduce, Broadcast, AllToAll]
