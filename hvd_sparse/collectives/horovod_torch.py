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
        "HOROVOD_WITH_PYTORCH=1, as scripts/setup does; hvd_sparse.ddp needs none"
    ) from error

Synchronized = Union[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]
"""Results of Horovod's: a tensor, or, of alltoall, a tensor and the lengths received."""


@dataclass(eq=False)
class _HorovodPending:
    """A collective of Horovod's that was started.

    Attributes
    ----------
    handle, name : Horovod's
    take : picks the tensor out of what Horovod returns; None where that is the tensor
    """

    handle: int
    name: str
    take: Callable[[Synchronized], torch.Tensor] | None = None

    def is_done(self) -> bool:
        """Tell whether ``wait`` would return at once."""
        return bool(hvd.poll(self.handle))

    def wait(self, timeout_s: float | None) -> np.ndarray:
        """Poll until the result is there, as Horovod's own wait has no limit.

        HorovodInternalError passes through.
        """
        if not (self.is_done() or sleep_until(self.is_done, timeout_s)):
            raise ExchangeTimeout(
                f"Horovod's {self.name!r} did not finish in {timeout_s} s: some rank did not "
                "submit it, or is stopped; look at the ranks' output, or raise timeout_s"
            )
        result = hvd.synchronize(self.handle)
        gathered: np.ndarray = (result if self.take is None else self.take(result)).numpy()
        return gathered


class HorovodTorchCollective(ProcessSetRanks):
    """Asynchronous collectives over a process set.  Implements
    ``collectives.contract.Collective``."""

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
    # torch warns of arrays that it must not write to, though Horovod only reads them.
    return torch.from_numpy(array if array.flags.writeable else array.copy())
