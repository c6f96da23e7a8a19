"""A process group of Gloo's that takes tensors of the pretend device too, as one with NCCL takes a
GPU's: each is copied to the host, exchanged there, and copied back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from devices import pretend
from torch._C._distributed_c10d import _create_work_from_future

NAME = "carried"


class Carried(dist.ProcessGroup):
    """Gloo beside it does the work."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any) -> None:
        super().__init__(rank, size)
        self._own = dist.ProcessGroupGloo(store, rank, size, timeout)

    @property
    def group_name(self) -> str:
        return NAME

    def getBackendName(self) -> str:
        return NAME

    def _carry(self, tensors: list[torch.Tensor], exchange: Callable[..., Any]) -> Any:
        if all(each.is_cpu for each in tensors):
            return exchange(tensors)
        hosts = [each.cpu() for each in tensors]
        exchange(hosts).wait()
        for tensor, host in zip(tensors, hosts):
            tensor.copy_(host)
        done: torch.futures.Future[Any] = torch.futures.Future()
        done.set_result(tensors)
        return _create_work_from_future(done)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._carry(tensors, lambda given: self._own.broadcast(given, opts))

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self._carry(tensors, lambda given: self._own.allreduce(given, opts))

    def allgather(self, outputs: Any, inputs: list[torch.Tensor], opts: Any = None) -> Any:
        (parts,), (mine,) = outputs, inputs

        def exchange(given: list[torch.Tensor]) -> Any:
            return self._own.allgather([given[1:]], given[:1], opts)

        return self._carry([mine, *parts], exchange)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        given: torch.Tensor,
        arriving: list[int],
        leaving: list[int],
        opts: Any = None,
    ) -> Any:
        def exchange(tensors: list[torch.Tensor]) -> Any:
            return self._own.alltoall_base(*tensors, arriving, leaving, opts)

        return self._carry([output, given], exchange)

    alltoall_base = all_to_all_single
    """What torch calls it up to 2.12.  Under one name only, the call goes by C++, and comes back
    with a work that never says that it is completed."""

    def barrier(self, opts: Any = None) -> Any:
        return self._own.barrier(opts)


def start(*, alone: bool) -> torch.device:
    """Make the device and the process group; return the device."""
    device = pretend.load()
    kinds = [pretend.NAME] if alone else ["cpu", pretend.NAME]
    dist.Backend.register_backend(NAME, Carried, devices=kinds)
    dist.init_process_group(NAME)
    return device
