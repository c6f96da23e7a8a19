"""Collectives between threads of one process, for tests and simulations without MPI."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

import numpy as np

from hvd_sparse.errors import ExchangeTimeout, RankMismatch

Result = TypeVar("Result")


@dataclass(eq=False)
class _Meeting:
    """A running collective, with the arrays that ranks have submitted so far."""

    brought: dict[int, object] = field(default_factory=dict)
    is_complete: threading.Event = field(default_factory=threading.Event)


class LocalWorld:
    """A world whose ranks are threads of this process.

    >>> LocalWorld(3).run(lambda c: int(c.allreduce(np.ones(1), "one").wait(1.0)[0]))
    [3, 3, 3]

    Parameters
    ----------
    world_size : number of ranks
    timeout_s : time limit of a collective and of a run, in seconds
    ranks_per_node : number of consecutive ranks that share a node, as reported by ``nodes``
    """

    def __init__(self, world_size: int, timeout_s: float = 60.0, ranks_per_node: int = 1) -> None:
        self.world_size = world_size
        self.nodes = tuple(rank // ranks_per_node for rank in range(world_size))
        self.timeout_s = timeout_s
        self.meetings: dict[str, _Meeting] = {}
        self.lock = threading.Lock()

    def run(self, function: Callable[..., Result], *arguments: object) -> list[Result]:
        """Call ``function(collective, *arguments)`` on every rank, and return the results in rank
        order. If ranks fail, raise the error of the lowest of them."""
        results = self.run_all(function, *arguments)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return cast("list[Result]", results)

    def run_all(
        self, function: Callable[..., Result], *arguments: object
    ) -> list[Result | BaseException]:
        """Call ``function(collective, *arguments)`` on every rank, and return the results in rank
        order. The result of a failed rank is its exception."""
        results: list[Result | BaseException] = [
            ExchangeTimeout(f"no result after {self.timeout_s} s")
        ] * self.world_size

        def call(rank: int) -> None:
            try:
                results[rank] = function(LocalCollective(self, rank), *arguments)
            except BaseException as error:
                results[rank] = error

        threads = [
            threading.Thread(target=call, args=(rank,), daemon=True)
            for rank in range(self.world_size)
        ]
        deadline = time.monotonic() + self.timeout_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        return results


@dataclass(eq=False)
class _LocalPending:
    world: LocalWorld
    meeting: _Meeting
    name: str
    finish: Callable[[list[Any]], np.ndarray]

    def wait(self, timeout_s: float | None) -> np.ndarray:
        world, brought = self.world, self.meeting.brought
        limit = world.timeout_s if timeout_s is None else min(timeout_s, world.timeout_s)
        if not self.meeting.is_complete.wait(limit):
            missing = sorted(set(range(world.world_size)) - set(brought))
            raise ExchangeTimeout(
                f"{self.name!r} did not finish in {limit} s: ranks {missing} did not submit it"
            )
        return self.finish([each for _, each in sorted(brought.items())])

    def is_done(self) -> bool:
        return self.meeting.is_complete.is_set()


class LocalCollective:
    """The collectives of one rank of a ``LocalWorld``."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self._world, self.rank = world, rank
        self.world_size, self.nodes = world.world_size, world.nodes

    def _submit(
        self, name: str, parts: list[np.ndarray], finish: Callable[[list[Any]], np.ndarray]
    ) -> _LocalPending:
        """Start a collective with copies of ``parts``, because callers overwrite the originals.
        ``finish`` is a function of all ranks' parts that returns the result."""
        world, rank, copies = self._world, self.rank, [part.copy() for part in parts]
        with world.lock:
            meeting = world.meetings.setdefault(name, _Meeting())
            if rank in meeting.brought:
                raise RankMismatch(
                    f"rank {rank} submits {name!r} twice before it is done: wait for its result "
                    "first, or use another name"
                )
            meeting.brought[rank] = copies
            if len(meeting.brought) == self.world_size:
                del world.meetings[name]  # the name is free again
                meeting.is_complete.set()
        return _LocalPending(world, meeting, name, finish)

    def allgather(self, array: np.ndarray, name: str) -> _LocalPending:
        def finish(everything: list[list[np.ndarray]]) -> np.ndarray:
            return np.concatenate([part for (part,) in everything])

        return self._submit(f"allgather.{name}", [array], finish)

    def allreduce(self, array: np.ndarray, name: str) -> _LocalPending:
        def finish(everything: list[list[np.ndarray]]) -> np.ndarray:
            # Add in rank order on every rank, so that all get the same bits.
            total = everything[0][0].copy()
            for (other,) in everything[1:]:
                if other.shape != total.shape:
                    raise RankMismatch(
                        f"allreduce {name!r}: ranks have arrays of shapes {total.shape} and "
                        f"{other.shape}; give the same shape on all ranks"
                    )
                with np.errstate(over="ignore", invalid="ignore"):  # like MPI and Gloo
                    total += other
            return total

        return self._submit(f"allreduce.{name}", [array], finish)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _LocalPending:
        def finish(everything: list[list[np.ndarray]]) -> np.ndarray:
            return np.concatenate([theirs[self.rank] for theirs in everything])

        return self._submit(f"alltoall.{name}", np.split(array, np.cumsum(splits)[:-1]), finish)
