"""N ranks in one process: threads that meet.  For tests and simulation, without MPI."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from hvd_sparse.errors import ExchangeTimeout, RankMismatch


class _Meeting:
    """One collective under one name: what each rank brought."""

    def __init__(self, world_size: int) -> None:
        self.brought: dict[int, Any] = {}
        self.is_complete = threading.Event()
        self.left = world_size


class LocalWorld:
    """A world of ranks that are threads of this process.

    >>> LocalWorld(3).run(lambda c: int(c.allreduce(np.ones(1), "one").wait(1.0)[0]))
    [3, 3, 3]

    Parameters
    ----------
    ranks_per_node : how many consecutive ranks are said to share a node

    Attributes
    ----------
    sent, received : bytes by rank, as each collective's definition moves them (not a ring's)
    wire_sent, wire_received : bytes by rank and by the collective's name, as they pass a rank's
        network: allgather and allreduce in a ring, broadcast handed on from rank to rank, alltoall
        straight to where it goes
    """

    def __init__(self, world_size: int, timeout_s: float = 60.0, ranks_per_node: int = 1) -> None:
        self.world_size = world_size
        self.nodes = tuple(rank // ranks_per_node for rank in range(world_size))
        self.timeout_s = timeout_s
        self.sent = [0] * world_size
        self.received = [0] * world_size
        self.wire_sent: list[Counter[str]] = [Counter() for _ in range(world_size)]
        self.wire_received: list[Counter[str]] = [Counter() for _ in range(world_size)]
        self._meetings: dict[str, _Meeting] = {}
        self._lock = threading.Lock()

    def run(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """``function(collective, *arguments)`` on every rank; results in rank order, or the first
        rank's error."""
        results = self.run_all(function, *arguments)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def run_all(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """As ``run``, with a rank's exception in the place of its result."""
        results: list[Any] = [
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

    def meet(self, rank: int, name: str, brought: Any) -> _Meeting:
        with self._lock:
            meeting = self._meetings.setdefault(name, _Meeting(self.world_size))
            if rank in meeting.brought:
                raise RankMismatch(f"rank {rank} submits {name!r} twice before it is done")
            meeting.brought[rank] = brought
            if len(meeting.brought) == self.world_size:
                del self._meetings[name]
                meeting.is_complete.set()
            return meeting


class _LocalPending:
    def __init__(
        self,
        world: LocalWorld,
        meeting: _Meeting,
        name: str,
        finish: Callable[[list[Any]], np.ndarray],
    ) -> None:
        self._world, self._meeting, self._name, self._finish = world, meeting, name, finish

    def wait(self, timeout_s: float | None) -> np.ndarray:
        limit = (
            self._world.timeout_s if timeout_s is None else min(timeout_s, self._world.timeout_s)
        )
        if not self._meeting.is_complete.wait(limit):
            missing = sorted(set(range(self._world.world_size)) - set(self._meeting.brought))
            raise ExchangeTimeout(
                f"{self._name!r} did not finish in {limit} s: ranks {missing} did not submit it"
            )
        return self._finish([self._meeting.brought[rank] for rank in range(self._world.world_size)])

    def is_done(self) -> bool:
        return self._meeting.is_complete.is_set()


class LocalCollective:
    """One rank's end of a ``LocalWorld``.  Implements ``collectives.contract.Collective``."""

    def __init__(self, world: LocalWorld, rank: int) -> None:
        self._world = world
        self.rank = rank

    @property
    def world_size(self) -> int:
        return self._world.world_size

    @property
    def nodes(self) -> tuple[int, ...]:
        return self._world.nodes

    def _submit(
        self,
        name: str,
        brought: Any,
        sent: int,
        finish: Callable[[list[Any]], np.ndarray],
        passing: Callable[[list[Any]], tuple[float, float]],
    ) -> _LocalPending:
        """``passing`` gives the bytes that leave and enter this rank, from what all brought."""
        world, rank = self._world, self.rank
        world.sent[rank] += sent

        def counted(everything: list[Any]) -> np.ndarray:
            result = finish(everything)
            world.received[rank] += result.nbytes
            out, into = passing(everything)
            world.wire_sent[rank][name] += round(out)
            world.wire_received[rank][name] += round(into)
            return result

        return _LocalPending(self._world, self._world.meet(self.rank, name, brought), name, counted)

    def allgather(self, array: np.ndarray, name: str) -> _LocalPending:
        def passing(arrays: list[np.ndarray]) -> tuple[float, float]:
            total, following = sum(a.nbytes for a in arrays), arrays[(self.rank + 1) % len(arrays)]
            return total - following.nbytes, total - array.nbytes

        return self._submit(
            f"allgather.{name}", array.copy(), array.nbytes, np.concatenate, passing
        )

    def allreduce(self, array: np.ndarray, name: str) -> _LocalPending:
        def in_rank_order(arrays: list[np.ndarray]) -> np.ndarray:
            total = arrays[0].copy()
            for other in arrays[1:]:
                if other.shape != total.shape:
                    raise RankMismatch(
                        f"{name!r}: ranks bring {total.shape} and {other.shape} to one sum"
                    )
                with np.errstate(over="ignore", invalid="ignore"):  # as MPI and Gloo add
                    total += other
            return total

        ring = 2 * (self.world_size - 1) / self.world_size * array.nbytes
        return self._submit(
            f"allreduce.{name}", array.copy(), array.nbytes, in_rank_order, lambda _: (ring, ring)
        )

    def broadcast(self, array: np.ndarray, root: int, name: str) -> _LocalPending:
        sent = array.nbytes if self.rank == root else 0
        is_last = (self.rank + 1) % self.world_size == root
        passed = 0 if is_last else array.nbytes, 0 if self.rank == root else array.nbytes
        return self._submit(
            f"broadcast.{name}",
            array.copy(),
            sent,
            lambda arrays: arrays[root].copy(),
            lambda _: passed,
        )

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _LocalPending:
        parts = np.split(array.copy(), np.cumsum(splits)[:-1])
        rank = self.rank

        def passing(everything: list[Any]) -> tuple[float, float]:
            into = sum(
                others[rank].nbytes for other, others in enumerate(everything) if other != rank
            )
            return array.nbytes - parts[rank].nbytes, into

        return self._submit(
            f"alltoall.{name}",
            parts,
            array.nbytes,
            lambda everything: np.concatenate([parts[rank] for parts in everything]),
            passing,
        )
