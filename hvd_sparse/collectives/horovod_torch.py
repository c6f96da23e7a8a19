"""Collectives over Horovod's PyTorch operations, for arrays on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Union

import numpy as np
import torch

from hvd_sparse.collectives._polling import sleep_until, unfinished
from hvd_sparse.collectives._process_set import ProcessSetRanks

try:
    import horovod.torch as hvd
    from horovod.torch import mpi_ops
except ImportError as error:
    raise ImportError(
        f"hvd_sparse.torch needs Horovod built for PyTorch ({error}); build it with "
        "HOROVOD_WITH_PYTORCH=1, as scripts/setup does; hvd_sparse.ddp works without Horovod"
    ) from error

Synchronized = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
"""Horovod's results: a tensor, or for an alltoall a tensor and the received lengths."""


@dataclass(eq=False)
class _HorovodPending:
    """A started Horovod collective; ``take`` converts its result to an array."""

    handle: int
    name: str
    take: Callable[[Synchronized], np.ndarray]

    def is_done(self) -> bool:
        return bool(hvd.poll(self.handle))

    def wait(self, timeout_s: float | None) -> np.ndarray:
        # Poll, because Horovod's ``synchronize`` has no time limit.
        if not (self.is_done() or sleep_until(self.is_done, timeout_s)):
            raise unfinished("Horovod", self.name, timeout_s)
        return self.take(hvd.synchronize(self.handle))


class HorovodTorchCollective(ProcessSetRanks):
    """Asynchronous collectives over a process set.

    Implements ``collectives.contract.Collective``. HorovodInternalError propagates from ``wait``.
    """

    horovod = mpi_ops

    def allgather(self, array: np.ndarray, name: str) -> _HorovodPending:
        return self._start(hvd.allgather_async, array, name)

    def allreduce(self, array: np.ndarray, name: str) -> _HorovodPending:
        return self._start(hvd.allreduce_async, array, name, op=hvd.Sum)

    def broadcast(self, array: np.ndarray, root: int, name: str) -> _HorovodPending:
        return self._start(hvd.broadcast_async, array, name, root_rank=self.global_rank(root))

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _HorovodPending:
        lengths = torch.tensor(splits, dtype=torch.int32)
        return self._start(hvd.alltoall_async, array, name, splits=lengths)

    def _start(
        self, operation: Callable[..., int], array: np.ndarray, name: str, **options: Any
    ) -> _HorovodPending:
        # Copy read-only arrays to avoid torch's warning, though Horovod does not write to them.
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        handle = operation(tensor, name=name, process_set=self.process_set, **options)
        return _HorovodPending(handle, name, _array_of)


def _array_of(result: Synchronized) -> np.ndarray:
    array: np.ndarray = (result if isinstance(result, torch.Tensor) else result[0]).numpy()
    return array
