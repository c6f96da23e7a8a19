"""Collectives over Horovod's PyTorch operations, from memory of the host or of a device (NCCL).

On a device, arrays are copied from and to pinned memory on a separate stream, so that copies do not
wait for the program's work on the device. This stream is the current one when an array is
submitted. Horovod waits for the current stream, and so for the copy to the device. Results are
copied to the host after ``catch_up``, and are freed later, so ``record_stream`` is not needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from hvd_sparse.collectives import unfinished
from hvd_sparse.collectives.contract import ProcessSetRanks, sleep_until
from hvd_sparse.kernels.torch.vector import fetch, upload
from hvd_sparse.types import ProcessSet

try:
    import horovod.torch as hvd
    from horovod.torch import mpi_ops
except ImportError as error:
    raise ImportError(
        f"hvd_sparse.torch needs Horovod built for PyTorch ({error}); build it with "
        "HOROVOD_WITH_PYTORCH=1, as scripts/setup does; hvd_sparse.ddp works without Horovod"
    ) from error


def held(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that keeps a C++ reference to the given tensor. The caller makes it before
    Horovod gets the given tensor, and keeps it until Horovod has finished with it.

    From torch 2.10 on, a thread that drops the last C++ reference to a tensor with a Python object
    needs Python's lock. When Horovod shuts down, its thread drops its references while it holds a
    lock of its own. A thread that submits a tensor waits for Horovod's lock while it holds Python's
    lock, so both threads would wait forever.
    """
    # Unlike a view, ``.grad`` refers to the tensor itself also if it is a view or was made in
    # inference mode.
    holder = tensor.detach()
    holder.grad = tensor
    return holder


@dataclass(eq=False)
class _HorovodPending:
    """A started Horovod collective. ``take`` converts its result to an array."""

    handle: int
    name: str
    take: Callable[[torch.Tensor], np.ndarray]

    def is_done(self) -> bool:
        return bool(hvd.poll(self.handle))

    def wait(self, timeout_s: float | None) -> np.ndarray:
        if not sleep_until(self.is_done, timeout_s):
            raise unfinished("Horovod", self.name, timeout_s)
        result = hvd.synchronize(self.handle)  # an alltoall also returns lengths
        return self.take(result if isinstance(result, torch.Tensor) else result[0])


class HorovodTorchCollective(ProcessSetRanks):
    """Collectives over a process set. ``wait`` lets HorovodInternalError pass, because elastic runs
    catch it."""

    horovod = mpi_ops

    # Horovod's public functions submit results that they make themselves. Its thread resizes these
    # at any time, so they could not be held without a race.

    def allgather(self, array: np.ndarray, name: str) -> _HorovodPending:
        return self._start(mpi_ops._allgather_async, array, name, torch.Tensor.new)

    def allreduce(self, array: np.ndarray, name: str) -> _HorovodPending:
        options = {"op": hvd.Sum, "prescale_factor": 1.0, "postscale_factor": 1.0}
        return self._start(mpi_ops._allreduce_async, array, name, torch.empty_like, **options)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _HorovodPending:
        lengths = torch.from_numpy(splits.astype(np.int32))
        return self._start(mpi_ops._alltoall_async, array, name, torch.Tensor.new, lengths)

    def _start(
        self,
        operation: Callable[..., int],
        array: np.ndarray,
        name: str,
        result_of: Callable[[torch.Tensor], torch.Tensor],
        *lengths: torch.Tensor,
        **options: Any,
    ) -> _HorovodPending:
        with self._on_stream():
            sent = self._as_tensor(array)
            given = sent, *lengths
            tensors = *given, *map(result_of, given)
            holders = [held(tensor) for tensor in tensors]
            handle = operation(*tensors, name=name, process_set=self.process_set, **options)
        # Horovod's own record lives as long as the collective. The result stays its last entry.
        mpi_ops._handle_map[handle] = holders, *mpi_ops._handle_map[handle]
        return _HorovodPending(handle, name, partial(self._fetch, sent))

    def _on_stream(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _as_tensor(self, array: np.ndarray) -> torch.Tensor:
        # Copy read-only arrays to avoid torch's warning, though Horovod does not write to them.
        return torch.from_numpy(array if array.flags.writeable else array.copy())

    def _fetch(self, sent: torch.Tensor, result: torch.Tensor) -> np.ndarray:
        """Return Horovod's result as an array. ``sent`` is an argument only to keep it alive,
        because Horovod may still read it."""
        array: np.ndarray = result.numpy()
        return array


class HorovodDeviceCollective(HorovodTorchCollective):
    """Collectives of host arrays that are copied to a device and sent from there."""

    def __init__(self, process_set: ProcessSet, device: torch.device) -> None:
        super().__init__(process_set)
        self.device = device
        self._stream = torch.Stream(device)

    def _as_tensor(self, array: np.ndarray) -> torch.Tensor:
        return upload(array, self.device)

    def _fetch(self, sent: torch.Tensor, result: torch.Tensor) -> np.ndarray:
        with self._on_stream():
            catch_up(self.device)
            return fetch(result)

    @contextmanager
    def _on_stream(self) -> Iterator[None]:
        before = torch.accelerator.current_stream(self.device)
        torch.accelerator.set_stream(self._stream)
        try:
            yield
        finally:
            torch.accelerator.set_stream(before)


def catch_up(device: torch.device) -> None:
    """Let the current stream wait until Horovod's results are complete. With
    ``HOROVOD_ENABLE_ASYNC_COMPLETION``, a collective is reported as done before its result is
    complete, and only the default stream waits for the result. So the current stream waits for the
    default stream."""
    if os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION", "0") not in ("", "0"):
        default = torch.get_device_module(device).default_stream(device)
        torch.accelerator.current_stream(device).wait_stream(default)


def why_not_on(device: torch.device) -> str | None:
    """Return the reason why Horovod cannot send tensors of a device, or None if it can."""
    if not hvd.nccl_built():
        return (
            "Horovod was built without NCCL: build it with HOROVOD_GPU_OPERATIONS=NCCL, as "
            "docker/Dockerfile.cuda does"
        )
    kind = torch.empty(0, dtype=torch.uint8, device=device).type().replace(".", "_")
    if not hasattr(mpi_ops.mpi_lib, f"horovod_torch_allgather_async_{kind}"):
        return f"Horovod has no operations for tensors on {device.type}: train on CUDA devices"
    return None
