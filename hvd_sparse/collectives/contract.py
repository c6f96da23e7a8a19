"""The collectives that exchanges are made of: four calls, a rank and a size.

``core`` only states the interface; ``hvd_sparse.collectives`` implements it over Horovod, mpi4py
and threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Union

import numpy as np


class Pending(Protocol):
    """A collective that was started."""

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Its result; ExchangeTimeout after ``timeout_s`` seconds."""

    def is_done(self) -> bool:
        """Whether there is nothing to gain by calling ``wait`` later."""


class Collective(Protocol):
    """What runs between ranks.  Every rank makes the same calls with the same names.

    Submitted arrays must stay untouched until the result is there.
    """

    @property
    def rank(self) -> int:
        """Of this process, in the process set."""

    @property
    def world_size(self) -> int:
        """Ranks in the process set, now."""

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """The node of every rank, as any number, the same on all ranks; None where that is not
        known."""

    def allgather(self, array: np.ndarray, name: str) -> Pending:
        """The 1-D arrays of all ranks, joined in rank order; lengths may differ."""

    def allreduce(self, array: np.ndarray, name: str) -> Pending:
        """The sum over all ranks of arrays of one shape."""

    def broadcast(self, array: np.ndarray, root: int, name: str) -> Pending:
        """The array of rank ``root``; all ranks give one shape."""

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> Pending:
        """1-D: ``splits[r]`` entries go to rank r; what arrives, joined in rank order."""


@dataclass(frozen=True)
class AllGather:
    """An exchange asks for an allgather."""

    array: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.allgather(self.array, name)


@dataclass(frozen=True)
class AllReduce:
    """An exchange asks for a sum."""

    array: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.allreduce(self.array, name)


@dataclass(frozen=True)
class Broadcast:
    """An exchange asks for one rank's array."""

    array: np.ndarray
    root: int

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.broadcast(self.array, self.root, name)


@dataclass(frozen=True)
class AllToAll:
    """An exchange asks for a personalised exchange."""

    array: np.ndarray
    splits: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.alltoall(self.array, self.splits, name)


Request = Union[AllGather, AllReduce, Broadcast, AllToAll]
