"""Collectives over a process group of ``torch.distributed``: Gloo, MPI or NCCL, without Horovod.

A process group matches collectives by their order. An allgather checks that this order is the same
on all ranks: each message starts with its length and a checksum of the collective's name.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from hvd_sparse.collectives import unfinished
from hvd_sparse.collectives.contract import sleep_until
from hvd_sparse.errors import ExchangeTimeout, RankMismatch
from hvd_sparse.kernels.torch.vector import fetch, upload
from hvd_sparse.wire.frame import crc32

HEADER_BYTES = 16
"""Number of bytes before a message: its length and a checksum of the name, as int64."""
REMEMBERED = 8
"""Number of last allgathers under a name whose longest messages determine the room (see
``_Gathering``)."""
SPARE = 16
"""The room is longer than the longest of these messages by 1 / ``SPARE`` of its length."""
STEADY = 2
"""If these lengths differ by more than this factor, the room is 0, to send little padding."""


@dataclass(eq=False)
class _Started:
    _work: dist.Work
    _output: torch.Tensor
    _name: str

    def is_done(self) -> bool:
        return bool(self._work.is_completed())

    def wait(self, timeout_s: float | None) -> np.ndarray:
        # Poll, because a timeout in torch ends the process group.
        if not sleep_until(self.is_done, timeout_s):
            raise unfinished("torch.distributed", self._name, timeout_s)
        try:
            self._work.wait()
        except RuntimeError as error:
            words = str(error).partition("\n")[0]
            raise ExchangeTimeout(
                f"torch.distributed aborted {self._name!r} ({words}): some rank has ended or has "
                "stopped; look at the ranks' output, and restart all of them"
            ) from error
        return fetch(self._output)


class _Gathering:
    """An allgather of messages of unequal lengths. The first collective gathers each message's
    length and beginning, which has at most as many bytes as the *room*, a number that is the same
    on all ranks. If a message is longer than the room, ``wait`` gathers the rest of all messages
    with a second collective."""

    def __init__(
        self,
        array: np.ndarray,
        name: str,
        lengths: deque[int],
        gather: Callable[[np.ndarray, str], _Started],
    ) -> None:
        self._message, self._dtype = array.view(np.uint8), array.dtype
        self._name, self._lengths, self._gather = name, lengths, gather
        longest = max(lengths, default=0)
        # All ranks have the same past lengths, and so the same room.
        is_steady = longest <= STEADY * min(lengths, default=0)
        self._room = longest + longest // SPARE if is_steady else 0
        first = np.zeros(HEADER_BYTES + self._room, np.uint8)
        first[:HEADER_BYTES].view(np.int64)[:] = self._message.size, crc32(name.encode())
        beginning = self._message[: self._room]
        first[HEADER_BYTES : HEADER_BYTES + beginning.size] = beginning
        self._first = gather(first, name)
        self._rest: _Started | None = None
        self._result: np.ndarray | None = None

    def is_done(self) -> bool:
        # Do not start the second collective here: ranks call this at different times.
        if self._result is not None:
            return True
        if self._rest is not None:
            return self._rest.is_done()
        return self._first.is_done() and bool(self._read(0.0)[1].max() <= self._room)

    def wait(self, timeout_s: float | None) -> np.ndarray:
        if self._result is not None:
            return self._result
        rows, sizes = self._read(timeout_s)
        parts = [row[HEADER_BYTES:][:size] for row, size in zip(rows, sizes)]
        longest = int(sizes.max())
        if longest > self._room:
            if self._rest is None:
                mine = np.zeros(longest - self._room, np.uint8)
                own = self._message[self._room :]
                mine[: own.size] = own
                self._rest = self._gather(mine, f"{self._name}, its rest")
            beyond = np.maximum(sizes - self._room, 0)
            pairs = zip(parts, self._rest.wait(timeout_s), beyond)
            parts = [np.concatenate([part, rest[:size]]) for part, rest, size in pairs]
        # Append only after all waits, because a wait that has timed out may be repeated.
        self._lengths.append(longest)
        self._result = np.concatenate(parts).view(self._dtype)
        return self._result

    def _read(self, timeout_s: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of the first collective, in which each rank has a row, and the
        messages' lengths in bytes. Raises RankMismatch if another rank runs a collective of another
        name."""
        rows = self._first.wait(timeout_s)
        told = np.ascontiguousarray(rows[:, :HEADER_BYTES]).view(np.int64)
        if (told[:, 1] != told[0, 1]).any():
            raise RankMismatch(
                f"this rank runs the collective {self._name!r}, and another rank a different one: "
                "make the same calls in the same order on all ranks, with the same options"
            )
        return rows, told[:, 0]


@dataclass(eq=False)
class _Alltoall:
    """An alltoall: a first collective exchanges the parts' lengths, a second one the parts."""

    _array: np.ndarray
    _leaving: list[int]
    _arriving: _Started
    _start: Callable[[np.ndarray, list[int], list[int]], _Started]
    _parts: _Started | None = None

    def is_done(self) -> bool:
        return self._parts is not None and self._parts.is_done()

    def wait(self, timeout_s: float | None) -> np.ndarray:
        if self._parts is None:
            arriving = self._arriving.wait(timeout_s).tolist()
            self._parts = self._start(self._array.view(np.uint8), arriving, self._leaving)
        return self._parts.wait(timeout_s).view(self._array.dtype)


class TorchDistributedCollective:
    """Asynchronous collectives over a process group. Arrays are copied to ``device`` if the group's
    backend does not support the CPU. ``timeout_s`` limits the wait for ``nodes``."""

    def __init__(
        self, group: dist.ProcessGroup, device: torch.device, timeout_s: float | None
    ) -> None:
        self.group = group
        self._timeout_s = timeout_s
        # For example, "cpu:gloo,cuda:nccl" supports the CPU, and "cuda:nccl" does not.
        takes_host = "cpu:" in dist.get_backend_config(group)
        self._device = torch.device("cpu") if takes_host else device
        self._lengths: dict[str, deque[int]] = {}

    @property
    def rank(self) -> int:
        return int(dist.get_rank(self.group))

    @property
    def world_size(self) -> int:
        return int(dist.get_world_size(self.group))

    @property
    def nodes(self) -> tuple[int, ...]:
        """For each rank, the index of its node. Collective: an allgather of the host names."""
        own = np.array([crc32(socket.gethostname().encode())], np.int64)
        hosts = self.allgather(own, "hvd_sparse.nodes").wait(self._timeout_s).tolist()
        return tuple(hosts.index(host) for host in hosts)

    def allgather(self, array: np.ndarray, name: str) -> _Gathering:
        lengths = self._lengths.setdefault(name, deque(maxlen=REMEMBERED))
        return _Gathering(np.ascontiguousarray(array), name, lengths, self._gather)

    def _gather(self, message: np.ndarray, name: str) -> _Started:
        mine = self._there(message)
        output = mine.new_empty((self.world_size, message.size))
        work = dist.all_gather(list(output), mine, group=self.group, async_op=True)
        return _Started(work, output, name)

    def allreduce(self, array: np.ndarray, name: str) -> _Started:
        total = self._there(array)
        work = dist.all_reduce(total, group=self.group, async_op=True)
        return _Started(work, total, name)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _Alltoall:
        leaving = [int(count) * array.itemsize for count in splits]

        def start(given: np.ndarray, arriving: list[int], leaving: list[int]) -> _Started:
            mine = self._there(given)
            output = mine.new_empty(sum(arriving))
            work = dist.all_to_all_single(
                output, mine, arriving, leaving, group=self.group, async_op=True
            )
            return _Started(work, output, name)

        ones = [1] * len(leaving)
        told = start(np.array(leaving, np.int64), ones, ones)
        return _Alltoall(np.ascontiguousarray(array), leaving, told, start)

    def _there(self, array: np.ndarray) -> torch.Tensor:
        return upload(array.copy(), self._device)
