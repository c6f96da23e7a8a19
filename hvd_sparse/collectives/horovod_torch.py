"""Collectives over Horovod's PyTorch operations, for arrays on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

import numpy as np
import torch

from hvd_sparse.collectives._polling import sleep_until
from hvd_sparse.collectives._process_set import ProcessSetRanks
from hvd_sparse.errors import ExchangeTimeout

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
    """A Horovod collective that has been started.

    Attributes
    ----------
    handle, name : Horovod's handle and name of the collective
    take : converts Horovod's result to the tensor to return; None to return it unchanged
    """

    handle: int
    name: str
    take: Callable[[Synchronized], torch.Tensor] | None = None

    def is_done(self) -> bool:
        """Return whether ``wait`` would return at once."""
        return bool(hvd.poll(self.handle))

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Wait for the result by polling, because Horovod's ``synchronize`` has no time limit.

        HorovodInternalError propagates.
        """
        if not (self.is_done() or sleep_until(self.is_done, timeout_s)):
            raise ExchangeTimeout(
                f"Horovod's {self.name!r} did not finish in {timeout_s} s: some rank has not "
                "submitted it or has stopped; look at the ranks' output, or raise timeout_s"
            )
        result = hvd.synchronize(self.handle)
        gathered: np.ndarray = (result if self.take is None else self.take(result)).numpy()
        return gathered


class HorovodTorchCollective(ProcessSetRanks):
    """Asynchronous collectives over a process set.

    Implements ``collectives.contract.Collective``.
    """

    horovod = mpi_ops

    def allgather(self, array: np.ndarray, name: str) -> _HorovodPending:
        handle = hvd.allgather_async(_as_tensor(array), name=name, process_set=self.process_set)
        return _HorovodPending(handle, name)

    def allreduce(self, array: np.ndarray, name: str) -> _HorovodPending:
        handle = hvd.allreduce_async(
            _as_tensor(array), name=name, op=hvd.Sum, process_set=self.process_set
        )
        return _HorovodPending(handle, name)

    def broadcast(self, array: np.ndarray, root: int, name: str) -> _HorovodPending:
        global_root = self.global_rank(root)
        handle = hvd.broadcast_async(
            _as_tensor(array), global_root, name=name, process_set=self.process_set
        )
        return _HorovodPending(handle, name)

    def alltoall(self, array: np.ndarray, splits: np.ndarray, name: str) -> _HorovodPending:
        handle = hvd.alltoall_async(
            _as_tensor(array),
            splits=torch.tensor(splits, dtype=torch.int32),
            name=name,
            process_set=self.process_set,
        )
        return _HorovodPending(handle, name, lambda result: result[0])


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    # Copy read-only arrays to avoid torch's warning, though Horovod does not write to them.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
