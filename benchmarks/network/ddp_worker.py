"""One rank under DistributedDataParallel, which makes steps with one hook.

``benchmarks.network`` starts the ranks by mpirun; they communicate over Gloo. The gradients are
given layer by layer, so a step contains only the work of DDP and its hook.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.architectures import parameters
from benchmarks.network.cluster import INTERFACE, SUBNET, interface_bytes
from benchmarks.network.launching import rank_options
from benchmarks.step.replay import Replay
from examples.spelling import Spelled, read_method
from hvd_sparse.ddp import register

PORT = 29533
SETTLING = 3
"""Fewest untimed steps, in which DDP rebuilds its buckets and PowerSGD is still dense."""


ONE_BUCKET_MB = 4096
"""Bucket size for PowerSGD. Its hook waits in callbacks of Gloo's threads; with several buckets,
all threads wait and the step hangs (torch 2.13)."""


class Timed(Replay):
    """Gradients of a model, each of which is ready at its time in the backward pass."""

    def __init__(self, options: Any, rank: int) -> None:
        listed = parameters(options.model)
        super().__init__([each.shape for each in listed], seed=rank)
        length_s = options.backward_ms / 1e3 if options.compute == "asleep" else 0.0
        self._ready_s = [each.ready * length_s for each in listed]
        self.steps, self.start = 0, 0.0

    def gradient(self, position: int) -> torch.Tensor:
        time.sleep(max(0.0, self.start + self._ready_s[position] - time.perf_counter()))
        return super().gradient(position)


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


def step(model: DistributedDataParallel, replay: Timed) -> dict[str, float]:
    replay.steps += 1
    replay.draw(replay.steps)
    model.zero_grad()
    number = model()
    dist.barrier()
    received, used = interface_bytes()[0], time.process_time()
    replay.start = time.perf_counter()
    number.backward()
    total, used = time.perf_counter() - replay.start, time.process_time() - used
    dist.barrier()
    # As an optimizer does that applies them: gradients that are thrown away are taken back.
    torch.autograd.graph.increment_version(replay.parameters)
    own = torch.tensor([total, used, interface_bytes()[0] - received], dtype=torch.float64)
    slowest = own.clone()
    dist.all_reduce(own)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    mean = (own / dist.get_world_size()).tolist()
    return {"total": float(slowest[0]), "all_threads": mean[1], "received": mean[2]}


def check_replicas(replay: Timed) -> None:
    sums = torch.stack([p.grad.view(torch.int32).sum(dtype=torch.int64) for p in replay.parameters])
    told = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(told, sums)
    if any(not torch.equal(each, sums) for each in told):
        raise AssertionError("the averaged gradients differ between ranks")


def main() -> None:
    options = rank_options(__doc__)
    torch.set_num_threads(1)
    join()
    replay = Timed(options, dist.get_rank())
    model = wrap(replay.module(), options.method, options.density)
    for _ in range(max(SETTLING, options.warmup)):
        step(model, replay)
    check_replicas(replay)
    rows = [step(model, replay) for _ in range(options.steps)]
    if dist.get_rank() == 0:
        options.output.write_text(json.dumps({"rows": rows, "report": {}}), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # past Gloo's end, which waits for pairs that other hosts have closed


if __name__ == "__main__":
    main()
