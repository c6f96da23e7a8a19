"""Collectives over a process group of ``torch.distributed``: Gloo, MPI or NCCL, without Horovod.

A process group matches collectives by the order in which they are submitted, so every rank submits
the same in one order.  Allgathers prove that they do: a message begins with its length and a
checksum of the collective's name.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

import numpy as np
import torch
import torch.distributed as dist

from hvd_sparse.collectives._polling import sleep_until
from hvd_sparse.errors import ExchangeTimeout, RankMismatch
from hvd_sparse.kernels.torch.vector import fetch, upload
from hvd_sparse.wire.checksum import crc32

HEADER_BYTES = 16
"""Of a gathered message: its length and its name's checksum, as int64."""
REMEMBERED = 8
"""Past allgathers of a name whose longest message says how much room the next one gets."""
SPARE = 16
"""A part of that much, one in so many, is added to the room."""
STEADY = 2
"""Lengths that differ by more than this factor, as a checkpoint's arrays, get no room at all: it
would be sent in vain."""


class _Started:
    """A collective of torch's that was started.

    Parameters
    ----------
    work : torch's
    output : where the result will be
    name : for errors
    """

    def __init__(self, work: dist.Work, output: torch.Tensor, name: str) -> None:
        self._work, self._output, self._name = work, output, name

    def is_done(self) -> bool:
        """Tell whether ``wait`` would return at once."""
        return bool(self._work.is_completed())

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the result; torch's own wait would end the process group at its limit."""
        if not (self.is_done() or sleep_until(self.is_done, timeout_s)):
            raise ExchangeTimeout(
                f"torch.distributed's {self._name!r} did not finish in {timeout_s} s: some rank "
                "did not submit it, or is stopped; look at the ranks' output, or raise timeout_s"
            )
        try:
            self._work.wait()
        except RuntimeError as error:
            words = str(error).partition("\n")[0]
            raise ExchangeTimeout(
                f"torch.distributed gave {self._name!r} up ({words}): some rank has ended, or is "
                "stopped; look at the ranks' output, and start all of them again"
            ) from error
        return fetch(self._output)


class _Gathering:
    """An allgather of messages of unequal lengths.

    What fits the room that the last allgathers of this name needed travels in one collective, which
    is under way while the program goes on.  What does not fit follows in a second one, when the
    result is waited for: the first tells all ranks alike of it.

    Parameters
    ----------
    array : this rank's message, 1-D
    name : of the collective
    lengths : of the longest messages under this name so far, the same on all ranks
    gather : starts an allgather of bytes, as many on every rank
    """

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
        # All ranks remember the same lengths, of results and not of their own messages, so all
        # find the same room without asking.
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
        """Tell whether ``wait`` would return at once.  It starts nothing: ranks ask at different
        times."""
        if self._result is not None:
            return True
        if not self._first.is_done():
            return False
        return (
            self._rest.is_done()
            if self._rest is not None
            # done without a second collective
            else bool(self._read(0.0)[1].max() <= self._room)
        )

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the ranks' messages, one behind the other."""
        if self._result is not None:
            return self._result
        rows, sizes = self._read(timeout_s)
        parts = [row[HEADER_BYTES:][:size] for row, size in zip(rows, sizes)]
        longest = int(sizes.max())
        if longest > self._room:
            rests = self._wait_for_rest(longest - self._room, timeout_s)
            beyond = np.maximum(sizes - self._room, 0)
            pairs = zip(parts, rests, beyond)
            parts = [np.concatenate([part, rest[:size]]) for part, rest, size in pairs]
        # Behind all waits: one that timed out is begun again.
        self._lengths.append(longest)
        self._result = np.concatenate(parts).view(self._dtype)
        return self._result

    def _read(self, timeout_s: float | None) -> tuple[np.ndarray, np.ndarray]:
        """Return what the first collective brought, a row a rank, and the messages' lengths."""
        rows = self._first.wait(timeout_s)
        told = np.ascontiguousarray(rows[:, :HEADER_BYTES]).view(np.int64)
        if (told[:, 1] != told[0, 1]).any():
            raise RankMismatch(
                f"this rank is at the collective {self._name!r}, and not all others are: make the "
                "same calls on all ranks, with the same options"
            )
        return rows, told[:, 0]

    def _wait_for_rest(self, longest: int, timeout_s: float | None) -> np.ndarray:
        if self._rest is None:
            rest = np.zeros(longest, np.uint8)
            own = self._message[self._room :]
            rest[: own.size] = own
            self._rest = self._gather(rest, f"{self._name}, its rest")
        return self._rest.wait(timeout_s)


class _Alltoall:
    """An alltoall, whose second collective is started when it is waited for.

    Parameters
    ----------
    array : 1-D, the parts for ranks 0, 1, ... one after the other
    leaving : bytes of each part
    arriving : the collective that brings the bytes of the parts for this rank
    start : starts a collective that fills a tensor
    """

    def __init__(
        self,
        array: np.ndarray,
        leaving: list[int],
        arriving: _Started,
        start: Callable[[torch.Tensor, np.ndarray, list[int], list[int]], _Started],
    ) -> None:
        self._array, self._leaving, self._arriving, self._start = array, leaving, arriving, start
        self._parts: _Started | None = None

    def is_done(self) -> bool:
        """Tell whether ``wait`` would return at once."""
        return self._parts is not None and self._parts.is_done()

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Return the parts for this rank, in rank order."""
        if self._parts is None:
            arriving = [int(size) for size in self._arriving.wait(timeout_s)]
            output = torch.empty(sum(arriving), dtype=torch.uint8)
            self._parts = self._start(output, self._array.view(np.uint8), arriving, self._leaving)
        return self._parts.wait(timeout_s).view(self._array.dtype)


class TorchDistributedCollective:
    """Asynchronous collectives over a process group.  Implements
    ``collectives.contract.Collective``.

    Parameters
    ----------
    group : of torch.distributed; this process is in it
    device : where the group's backend wants tensors, if it takes none on the CPU, as NCCL
    """

    def __init__(self, group: dist.ProcessGroup, device: torch.device) -> None:
        self.group = group
        # "cpu:gloo,cuda:nccl" takes both, "cuda:nccl" none on the host
        takes_host = "cpu:" in dist.get_backend_config(group)
        self._device = torch.device("cpu") if takes_host else device
        self._lengths: dict[str, deque[int]] = {}

    @property
    def rank(self) -> int:
        """Return this process's rank in the group."""
        return int(dist.get_rank(self.group))

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the group."""
        return int(dist.get_world_size(self.group))

    @property
    def nodes(self) -> tuple[int, ...]:
        """Return the node of every rank, by the names of their hosts.  Collective."""
        own = np.array([crc32(socket.gethostname().encode())], np.int64)
        hosts = self.allgather(own, "hvd_sparse.nodes").wait(None).tolist()
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

    def broadcast(self, array: np.ndarray, root: int, name: str) -> _Started:
        received, source = self._there(array), dist.get_global_rank(self.group, root)
        work = dist.broadcast(received, source, group=self.group, async_op=True)
        return _Started(work, received, name)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _Alltoall:
        leaving = [int(count) * array.itemsize for count in splits]
        sizes = torch.empty(len(leaving), dtype=torch.int64)

        def start(
            output: torch.Tensor, given: np.ndarray, arriving: list[int], leaving: list[int]
        ) -> _Started:
            there = output.to(self._device)
            work = dist.all_to_all_single(
                there, self._there(given), arriving, leaving, group=self.group, async_op=True
            )
            return _Started(work, there, name)

        ones = [1] * len(leaving)
        told = start(sizes, np.array(leaving, np.int64), ones, ones)
        return _Alltoall(np.ascontiguousarray(array), leaving, told, start)

    def _there(self, array: np.ndarray) -> torch.Tensor:
        """Return a tensor of its own with an array's entries, where the backend wants it."""
        return upload(array.copy(), self._device)
