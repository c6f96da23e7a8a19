"""Collectives over Horovod's PyTorch operations on a device: what NCCL carries.

Arrays are uploaded from pinned memory, and results fetched to it, on a stream of the wire's own, so
that neither waits for what a program has queued on another one.

* Horovod awaits the submitting thread's current stream, which is the wire's then: the upload.
* Horovod's result is there when its handle is done.  With ``HOROVOD_ENABLE_ASYNC_COMPLETION`` a
  handle is done earlier, and only the device's default stream waits for the result: the wire's
  stream waits for that one before it fetches, and what was sent is kept until then.
* Its result lies in memory of the default stream.  The host has the bytes before it lets go of
  them, so nothing has to be recorded for the allocator.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hvd_sparse.collectives._process_set import ProcessSet
from hvd_sparse.collectives.horovod_torch import (
    HorovodTorchCollective,
    Synchronized,
    _HorovodPending,
    hvd,
    mpi_ops,
)
from hvd_sparse.collectives.padding import Count, Room, needed, read_blocks, write_block
from hvd_sparse.kernels.torch.vector import fetch, upload


class HorovodDeviceCollective(HorovodTorchCollective):
    """Asynchronous collectives over a process set, by way of a device's memory.

    Implements ``collectives.contract.Collective``: arrays of the host go in and come out.  Gathered
    arrays, and the parts of an alltoall, travel as ``padding``'s blocks.

    Parameters
    ----------
    process_set : of Horovod's
    device : where Horovod gets its tensors
    count : is told of the bytes that padding costs
    """

    def __init__(self, process_set: ProcessSet, device: torch.device, count: Count) -> None:
        super().__init__(process_set)
        self.device, self._count = device, count
        self._stream = torch.Stream(device)
        self._rooms: defaultdict[str, Room] = defaultdict(Room)

    def allgather(self, array: np.ndarray, name: str) -> _HorovodPending:
        room = self._rooms[name]
        block = write_block(np.ascontiguousarray(array), room.nbytes)
        with self._on_stream():
            sent = upload(block, self.device)
            handle = hvd.allgather_async(sent, name=name, process_set=self.process_set)

        def take(joined: Synchronized) -> torch.Tensor:
            contents = self._read(joined, sent, name, block.size - array.nbytes)
            # All ranks see all lengths, so all make the same room for the next step.
            room.note(max(map(needed, contents)))
            return _joined(contents, array.dtype)

        return _HorovodPending(handle, name, take)

    def allreduce(self, array: np.ndarray, name: str) -> _HorovodPending:
        with self._on_stream():
            sent = upload(array, self.device)
            handle = hvd.allreduce_async(sent, name=name, op=hvd.Sum, process_set=self.process_set)
        return _HorovodPending(handle, name, lambda result: self._fetch(result, sent))

    def broadcast(self, array: np.ndarray, root: int, name: str) -> _HorovodPending:
        global_root = self.global_rank(root)
        with self._on_stream():
            sent = upload(array, self.device)
            handle = hvd.broadcast_async(sent, global_root, name=name, process_set=self.process_set)
        return _HorovodPending(handle, name, lambda result: self._fetch(result, sent))

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _HorovodPending:
        room = self._rooms[name]
        parts = np.split(np.ascontiguousarray(array), np.cumsum(splits)[:-1])
        total = sum(map(needed, parts))
        room.note(total)
        # A length needs to stay this rank's own alone, and its part for itself travels nowhere.
        blocks = [
            write_block(part, needed(part) + (room.nbytes - total) * (to == self.rank))
            for to, part in enumerate(parts)
        ]
        lengths = torch.tensor([block.size for block in blocks], dtype=torch.int32)
        with self._on_stream():
            sent = upload(np.concatenate(blocks), self.device)
            handle = hvd.alltoall_async(
                sent, splits=lengths, name=name, process_set=self.process_set
            )

        def take(result: Synchronized) -> torch.Tensor:
            contents = self._read(result[0], sent, name, room.nbytes - array.nbytes)
            return _joined(contents, array.dtype)

        return _HorovodPending(handle, name, take)

    def _read(
        self, joined: Synchronized, sent: torch.Tensor, name: str, more: int
    ) -> list[np.ndarray]:
        """Return the contents of joined blocks, and count what they cost.

        more : bytes that were sent besides the array's own
        """
        fetched = self._fetch(joined, sent).numpy()
        contents = read_blocks(fetched, name)
        self._count(more, fetched.nbytes - sum(each.nbytes for each in contents))
        return contents

    def _fetch(self, result: Synchronized, sent: torch.Tensor) -> torch.Tensor:
        """Return Horovod's result on the host.

        sent : which Horovod may read until then
        """
        assert isinstance(result, torch.Tensor)
        with self._on_stream():
            catch_up(self.device)
            array = fetch(result)
        del sent
        return torch.from_numpy(array)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        """Let this thread's current stream be the wire's."""
        before = torch.accelerator.current_stream(self.device)
        torch.accelerator.set_stream(self._stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)


def catch_up(device: torch.device) -> None:
    """Let this thread's current stream wait for Horovod's results, where they are not there yet
    when Horovod says so."""
    if os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION", "0") not in ("", "0"):
        default = torch.get_device_module(device).default_stream(device)
        torch.accelerator.current_stream(device).wait_stream(default)


def why_not_on(device: torch.device) -> str | None:
    """Return why Horovod cannot carry a device's tensors, in words; None where it can."""
    if not hvd.nccl_built():
        return (
            "Horovod was built without NCCL: build it with HOROVOD_GPU_OPERATIONS=NCCL, as "
            "docker/Dockerfile.cuda does"
        )
    kind = torch.empty(0, dtype=torch.uint8, device=device).type().replace(".", "_")
    if not hasattr(mpi_ops.mpi_lib, f"horovod_torch_allgather_async_{kind}"):
        return f"Horovod has no operations for tensors on {device.type}: train on CUDA devices"
    return None


def _joined(contents: list[np.ndarray], dtype: np.dtype) -> torch.Tensor:
    return torch.from_numpy(np.concatenate(contents).view(dtype))
