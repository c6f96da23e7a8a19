"""Protocols of collectives, the requests for collectives that exchanges yield, the gathering of
values from all ranks, and the placement of ranks on nodes."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np

MOST_BYTES = 2**31 - 1
"""Largest number of bytes in one collective, because MPI and Horovod count them with 32 bits.
Horovod also counts those that a rank receives from all ranks together."""
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 2e-5, 5e-4


class Pending(Protocol):
    """A collective that has been started and may still run."""

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the result. Raises ExchangeTimeout after ``timeout_s`` seconds; None sets no
        limit."""

    def is_done(self) -> bool:
        """Return whether ``wait`` would return at once."""


class Collective(Protocol):
    """Asynchronous collectives. All ranks must make the same calls with the same names. An array
    must not be modified until the result has arrived."""

    @property
    def rank(self) -> int:
        """This process's rank in the process set."""

    @property
    def world_size(self) -> int:
        """The current number of ranks in the process set."""

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """For each rank, the index of its node; the same on all ranks. None if unknown."""

    def allgather(self, array: np.ndarray, name: str) -> Pending:
        """Start to concatenate the 1-D arrays of all ranks in rank order; lengths may differ."""

    def allreduce(self, array: np.ndarray, name: str) -> Pending:
        """Start to sum arrays of equal shape over all ranks."""

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> Pending:
        """Start to send ``splits[r]`` entries of a 1-D array to each rank r, in order. The result
        concatenates the received parts in rank order."""


@dataclass(frozen=True)
class Request:
    """A request for a collective.

    kind : the name of a method of ``Collective``: "allgather", "allreduce" or "alltoall"
    array : the array that this method takes
    splits : int32 [world_size], only for an alltoall: rank r receives ``splits[r]`` entries
    """

    kind: str
    array: np.ndarray
    splits: np.ndarray | None = None

    def start(self, collective: Collective, name: str) -> Pending:
        splits = () if self.splits is None else (self.splits,)
        pending: Pending = getattr(collective, self.kind)(self.array, *splits, name)
        return pending


def sleep_until(is_done: Callable[[], bool], limit_s: float | None) -> bool:
    """Poll ``is_done`` until it returns True; return False if the time limit passes first."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    sleep_s = SHORTEST_SLEEP_S
    while not is_done():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(sleep_s)
        # Sleep briefly at first, because most results arrive soon.
        sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
    return True


def is_elastic() -> bool:
    """Return whether Horovod may add, remove and renumber ranks (an elastic run)."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


@dataclass(frozen=True)
class Gatherer:
    """Gathers arrays and JSON values from all ranks, by allgathers that run one after the other
    under one name. All ranks must make the same calls."""

    collective: Collective
    name: str
    timeout_s: float | None

    def gather(self, data: np.ndarray) -> np.ndarray:
        """Return the bytes of all ranks' arrays, joined in rank order, as uint8."""
        return self.collective.allgather(data.view(np.uint8), self.name).wait(self.timeout_s)

    def tell_all(self, value: object) -> list[Any]:  # Any, because the values are JSON
        """Send a JSON-serializable value to all ranks, and return all values in rank order."""
        line = json.dumps(value).encode() + b"\n"
        gathered = self.gather(np.frombuffer(line, np.uint8)).tobytes()
        return [json.loads(line) for line in gathered.splitlines()]


@dataclass(frozen=True)
class Placement:
    """This process's rank, and the index of every rank's node."""

    rank: int
    nodes: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return len(self.nodes)

    @cached_property
    def node_count(self) -> int:
        return len(set(self.nodes))

    def mates(self, rank: int) -> list[int]:
        """Return the ranks that share a node with ``rank``, itself included, ascending."""
        return [other for other, node in enumerate(self.nodes) if node == self.nodes[rank]]

    def part(self, rank: int, numel: int) -> slice:
        """Return a rank's slice of a vector that the ranks of its node divide among themselves. The
        lengths of the slices differ by at most one entry."""
        mates = self.mates(rank)
        number, size = mates.index(rank), len(mates)
        return slice(numel * number // size, numel * (number + 1) // size)

    def longest_part(self, numel: int) -> int:
        """Return the largest number of entries that any rank has if each node's ranks divide a
        vector of ``numel`` entries among themselves, as by ``part``."""
        return -(-numel // min(map(self.nodes.count, set(self.nodes))))


@lru_cache(maxsize=64)
def in_nodes_of(ranks_per_node: int, rank: int, world_size: int) -> Placement:
    """Return a placement of ``ranks_per_node`` consecutive ranks on each node; the last node may
    have fewer."""
    return Placement(rank, tuple(other // ranks_per_node for other in range(world_size)))


class ProcessSetRanks:
    """Base class of collectives over a Horovod process set, with its rank, size and nodes."""

    horovod: ClassVar[ModuleType]
    """Horovod's module for the framework."""

    def __init__(self, process_set: Any) -> None:
        self.process_set = process_set

    @property
    def rank(self) -> int:
        """This process's rank in the process set, or -1 if this process is not a member."""
        try:
            return int(self.process_set.rank())
        except ValueError:
            return -1

    @property
    def world_size(self) -> int:
        return int(self.process_set.size())

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """For each rank, the index of its node, if ranks are numbered node by node; None if nodes
        have unequal numbers of ranks. The handshake checks the numbering, because Horovod gives
        each process only its own place."""
        if not self.horovod.is_homogeneous():
            return None
        local = int(self.horovod.local_size())
        nodes = [rank // local for rank in range(self.horovod.size())]
        ranks = self.process_set.ranks
        return tuple(nodes if ranks is None else [nodes[rank] for rank in ranks])
