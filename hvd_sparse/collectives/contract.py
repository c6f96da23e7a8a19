"""The contract of collectives, and the requests for collectives that exchanges yield."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, Union

import numpy as np


class Pending(Protocol):
    """A collective that has been started."""

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the result; raise ExchangeTimeout if it takes longer than ``timeout_s`` seconds.

        With None there is no limit.
        """

    def is_done(self) -> bool:
        """Return whether ``wait`` would return at once."""


class Collective(Protocol):
    """Asynchronous collectives: all ranks must make the same calls with the same names.

    Arrays must not be modified between the call and its result.
    """

    @property
    def rank(self) -> int:
        """This process's rank in the process set."""

    @property
    def world_size(self) -> int:
        """The current number of ranks in the process set."""

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """A number for the node of every rank, the same on all ranks; None if unknown."""

    def allgather(self, array: np.ndarray, name: str) -> Pending:
        """Concatenate the 1-D arrays of all ranks in rank order; lengths may differ."""

    def allreduce(self, array: np.ndarray, name: str) -> Pending:
        """Sum arrays of equal shape over all ranks."""

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> Pending:
        """Send ``splits[r]`` entries of a 1-D array to each rank r, in order.

        The result concatenates the received parts in rank order.
        """


@dataclass(frozen=True)
class AllGather:
    """A request for an allgather of 1-D arrays."""

    array: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.allgather(self.array, name)


@dataclass(frozen=True)
class AllReduce:
    """A request for a sum over all ranks."""

    array: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.allreduce(self.array, name)


@dataclass(frozen=True)
class AllToAll:
    """A request for an alltoall of a 1-D array, with ``splits[r]`` entries for rank r, int32."""

    array: np.ndarray
    splits: np.ndarray

    def start(self, collective: Collective, name: str) -> Pending:
        return collective.alltoall(self.array, self.splits, name)


Request = Union[AllGather, AllReduce, AllToAll]
