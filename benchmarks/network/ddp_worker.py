"""One rank under DistributedDataParallel, which makes steps with one hook.

``benchmarks.network`` starts the ranks by mpirun; they communicate over Gloo. The gradients are
given layer by layer, so a step contains only the work of DDP and its hook.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks._gradients import Gradients, fill
from benchmarks.architectures import parameters
from benchmarks.network.cluster import INTERFACE, SUBNET, interface_bytes
from benchmarks.network.launching import POOL, rank_options
from hvd_sparse.ddp import register
from hvd_sparse.methods.spelling import Spelled, read_method

PORT = 29533
SETTLING = 3
"""Fewest untimed steps, in which DDP rebuilds its buckets and PowerSGD is still dense."""


ONE_BUCKET_MB = 4096
"""Bucket size for PowerSGD. Its hook waits in callbacks of Gloo's threads; with several buckets,
all threads wait and the step hangs (torch 2.13)."""


class _Layer(torch.autograd.Function):
    """Returns its input. Its backward pass sleeps until the gradient is ready and returns it."""

    @staticmethod
    def forward(
        ctx: Any, number: torch.Tensor, _: torch.Tensor, given: torch.Tensor, wait: Any
    ) -> Any:
        ctx.given, ctx.wait = given, wait
        return number.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        ctx.wait()
        return grads[0], ctx.given, None, None


class Given(nn.Module):
    """A model's parameters, whose gradients are given at recorded times."""

    def __init__(self, options: Any, rank: int) -> None:
        super().__init__()
        listed = parameters(options.model)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(each.shape)) for each in listed)
        length_s = options.backward_ms / 1e3 if options.compute == "asleep" else 0.0
        self.ready_s = [each.ready * length_s for each in listed]
        self.work = torch.empty(sum(parameter.numel() for parameter in self.weights))
        self.source, self.steps, self.start = Gradients.draw(POOL, seed=rank).arrays[0], 0, 0.0

    def draw(self) -> None:
        self.steps += 1
        fill(self.work.numpy(), self.source, self.steps)

    def forward(self) -> torch.Tensor:
        number = torch.zeros((), requires_grad=True)
        pieces = self.work.split([parameter.numel() for parameter in self.weights])
        for parameter, piece, ready_s in zip(self.weights, pieces, self.ready_s):
            given = piece.view(parameter.shape)
            number = _Layer.apply(number, parameter, given, self._until(ready_s))
        return number

    def _until(self, ready_s: float) -> Callable[[], None]:
        def wait() -> None:
            time.sleep(max(0.0, self.start + ready_s - time.perf_counter()))

        return wait


def join() -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{SUBNET}.1:{PORT}",
        rank=int(os.environ["OMPI_COMM_WORLD_RANK"]),
        world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]),
    )


def wrap(network: nn.Module, method: str, density: Spelled) -> DistributedDataParallel:
    """Return the network under DDP with the hook of a method: "dense" (no hook), "fp16", "powersgd"
    followed by its rank, or one of our methods."""
    buckets: dict[str, Any] = {}
    if method.startswith("powersgd"):
        buckets["bucket_cap_mb"] = ONE_BUCKET_MB
    model = DistributedDataParallel(network, init_sync=False, **buckets)
    if method == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif method.startswith("powersgd"):
        rank = int(method.removeprefix("powersgd"))
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif method != "dense":
        spelled = read_method(method)
        register(model, spelled.name, **{"density": density, **spelled.options})
    return model


def step(model: DistributedDataParallel) -> dict[str, float]:
    bare = model.module
    bare.draw()
    model.zero_grad()
    number = model()
    dist.barrier()
    received, used = interface_bytes()[0], time.process_time()
    bare.start = time.perf_counter()
    number.backward()
    total, used = time.perf_counter() - bare.start, time.process_time() - used
    dist.barrier()
    # As an optimizer does that applies them: gradients that are thrown away are taken back.
    torch.autograd.graph.increment_version(list(bare.weights))
    own = torch.tensor([total, used, interface_bytes()[0] - received], dtype=torch.float64)
    slowest = own.clone()
    dist.all_reduce(own)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    mean = (own / dist.get_world_size()).tolist()
    return {"total": float(slowest[0]), "all_threads": mean[1], "received": mean[2]}


def check_replicas(bare: Given) -> None:
    sums = torch.stack([p.grad.view(torch.int32).sum(dtype=torch.int64) for p in bare.weights])
    told = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(told, sums)
    if any(not torch.equal(each, sums) for each in told):
        raise AssertionError("the averaged gradients differ between ranks")


def main() -> None:
    options = rank_options(__doc__)
    torch.set_num_threads(1)
    join()
    bare = Given(options, dist.get_rank())
    model = wrap(bare, options.method, options.density)
    for _ in range(max(SETTLING, options.warmup)):
        step(model)
    check_replicas(bare)
    rows = [step(model) for _ in range(options.steps)]
    if dist.get_rank() == 0:
        options.output.write_text(json.dumps({"rows": rows, "report": {}}), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # past Gloo's end, which waits for pairs that other hosts have closed


if __name__ == "__main__":
    main()
