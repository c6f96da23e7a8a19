"""Collectives between threads of one process, for tests and simulation without MPI."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Generic, TypeVar, cast

import numpy as np

from hvd_sparse.errors import ExchangeTimeout, RankMismatch

Result = TypeVar("Result")
Part = TypeVar("Part")


class _Meeting:
    """One running collective: the operands submitted so far, by rank."""

    def __init__(self, world_size: int) -> None:
        self.brought: dict[int, object] = {}
        self.is_complete = threading.Event()
        self.left = world_size


class LocalWorld:
    """A world whose ranks are threads of this process.

    >>> LocalWorld(3).run(lambda c: int(c.allreduce(np.ones(1), "one").wait(1.0)[0]))
    [3, 3, 3]

    Parameters
    ----------
    world_size : number of ranks
    timeout_s : time limit of a collective and of a run, in seconds
    ranks_per_node : number of consecutive ranks that share a node, as reported by ``nodes``

    Attributes
    ----------
    sent, received : bytes by rank: the operand that the rank submits and the result that it gets
    wire_sent, wire_received : bytes through the network of each rank, by the collective's name:
        allgather and allreduce in a ring, broadcast along a chain of ranks, alltoall directly
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

    def run(self, function: Callable[..., Result], *arguments: object) -> list[Result]:
        """Call ``function(collective, *arguments)`` on every rank; return the results by rank.

        Raises the error of the lowest rank that failed.
        """
        results = []
        for result in self.run_all(function, *arguments):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
        return results

    def run_all(
        self, function: Callable[..., Result], *arguments: object
    ) -> list[Result | BaseException]:
        """Call a function like ``run``, but return a failed rank's exception as its result."""
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

    def meet(self, rank: int, name: str, brought: object) -> _Meeting:
        """Submit a rank's operand to a collective, and return the collective."""
        with self._lock:
            meeting = self._meetings.setdefault(name, _Meeting(self.world_size))
            if rank in meeting.brought:
                raise RankMismatch(
                    f"rank {rank} submits {name!r} twice before it is done: wait for its result "
                    "first, or use another name"
                )
            meeting.brought[rank] = brought
            if len(meeting.brought) == self.world_size:
                del self._meetings[name]  # the name is free again
                meeting.is_complete.set()
            return meeting


class _LocalPending(Generic[Part]):
    def __init__(
        self,
        world: LocalWorld,
        meeting: _Meeting,
        name: str,
        finish: Callable[[list[Part]], np.ndarray],
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
        parts = [self._meeting.brought[rank] for rank in range(self._world.world_size)]
        return self._finish(cast("list[Part]", parts))  # all ranks make the same call

    def is_done(self) -> bool:
        return self._meeting.is_complete.is_set()


class LocalCollective:
    """The collectives of one rank of a ``LocalWorld``.

    Implements ``collectives.contract.Collective``.
    """

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
        brought: Part,
        sent: int,
        finish: Callable[[list[Part]], np.ndarray],
        passing: Callable[[list[Part]], tuple[float, float]],
    ) -> _LocalPending:
        """Start a collective; ``finish`` computes its result from all operands, and ``passing`` the
        bytes that go out and in through this rank's network."""
        world, rank = self._world, self.rank
        world.sent[rank] += sent

        def counted(everything: list[Part]) -> np.ndarray:
            result = finish(everything)
            world.received[rank] += result.nbytes
            out, into = passing(everything)
            world.wire_sent[rank][name] += round(out)
            world.wire_received[rank][name] += round(into)
            return result

        return _LocalPending(self._world, self._world.meet(self.rank, name, brought), name, counted)

    def allgather(self, array: np.ndarray, name: str) -> _LocalPending:
        def passing(arrays: list[np.ndarray]) -> tuple[float, float]:
            # In a ring a rank forwards all parts except that of the next rank.
            total, following = sum(a.nbytes for a in arrays), arrays[(self.rank + 1) % len(arrays)]
            return total - following.nbytes, total - array.nbytes

        # Copy, because this rank may overwrite its array before another fetches the result.
        return self._submit(
            f"allgather.{name}", array.copy(), array.nbytes, np.concatenate, passing
        )

    def allreduce(self, array: np.ndarray, name: str) -> _LocalPending:
        def in_rank_order(arrays: list[np.ndarray]) -> np.ndarray:
            # Add in rank order on every rank, so that all get the same bits.
            total = arrays[0].copy()
            for other in arrays[1:]:
                if other.shape != total.shape:
                    raise RankMismatch(
                        f"allreduce {name!r}: ranks have arrays of shapes {total.shape} and "
                        f"{other.shape}; give the same shape on all ranks"
                    )
                with np.errstate(over="ignore", invalid="ignore"):  # like MPI and Gloo
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

        def passing(everything: list[list[np.ndarray]]) -> tuple[float, float]:
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
