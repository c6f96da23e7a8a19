"""One rank under DistributedDataParallel, with one hook.  Started by ``benchmarks.network`` under
mpirun, which only starts it: the ranks meet by Gloo.

The gradients are given, layer behind layer, so that a step is what DDP and its hook make of them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.architectures import parameters
from benchmarks.network.cluster import INTERFACE, SUBNET, interface_bytes
from benchmarks.network.gradients import fill, pool
from benchmarks.network.specs import split
from benchmarks.network.timings import ready
from hvd_sparse.ddp import register
from hvd_sparse.density_text import density_argument

PORT = 29533
SETTLING = 3
"""Steps at least before those that are timed: DDP builds its buckets anew, and PowerSGD waits."""


ONE_BUCKET_MB = 4096
"""For PowerSGD's hook, which waits inside callbacks of Gloo's threads: with several buckets all
threads wait, and nothing goes on (torch 2.13)."""


class _Layer(torch.autograd.Function):
    """Passes a number on; backward, sleeps until its time and gives the parameter its gradient."""

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
    """A model's parameters, with gradients that are given at given times."""

    def __init__(self, options: argparse.Namespace, rank: int) -> None:
        super().__init__()
        listed = parameters(options.model)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(each.shape)) for each in listed)
        named = [(each.name, None) for each in listed]
        length_s = options.backward_ms / 1e3 if options.compute == "asleep" else 0.0
        self.ready_s = [part * length_s for part in ready(options.model, named)]
        self.work = torch.empty(sum(parameter.numel() for parameter in self.weights))
        self.source, self.steps, self.start = pool(rank), 0, 0.0

    def draw(self) -> None:
        """Make other gradients."""
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


def hook_on(model: DistributedDataParallel, spec: str, density: float) -> None:
    """Give the model a hook by its name on the command line."""
    if spec == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    elif spec.startswith("powersgd"):
        rank = int(spec.removeprefix("powersgd"))
        state = powerSGD_hook.PowerSGDState(None, rank, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    elif spec != "dense":
        id, chosen = split(spec)
        register(model, id, **{"density": density, **chosen})


def step(model: DistributedDataParallel) -> dict[str, float]:
    """One step, on all ranks at once: the slowest one's seconds, of everything else the mean."""
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


def check_replicas(bare: Given, spec: str) -> None:
    """All ranks must have the same bits in their averages."""
    sums = torch.stack([p.grad.view(torch.int32).sum(dtype=torch.int64) for p in bare.weights])
    told = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(told, sums)
    if any(not torch.equal(each, sums) for each in told):
        raise AssertionError(f"{spec}: the averaged gradients differ between ranks")


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each timed step of the one method."""
    (spec,) = options.methods
    bare = Given(options, dist.get_rank())
    buckets = {"bucket_cap_mb": ONE_BUCKET_MB} if spec.startswith("powersgd") else {}
    model = DistributedDataParallel(bare, init_sync=False, **buckets)
    hook_on(model, spec, options.density)
    for _ in range(max(SETTLING, options.warmup)):
        step(model)
    check_replicas(bare, spec)
    return [{"method": spec, "round": 0, **step(model)} for _ in range(options.steps)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--compute")
    parser.add_argument("--methods", nargs=1)
    for name, kind in {"backward-ms": float, "density": density_argument, "output": Path}.items():
        parser.add_argument(f"--{name}", type=kind)
    for name in ("rounds", "steps", "warmup"):
        parser.add_argument(f"--{name}", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = INTERFACE
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{SUBNET}.1:{PORT}",
        rank=int(os.environ["OMPI_COMM_WORLD_RANK"]),
        world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]),
    )
    rows = measure(options)
    if dist.get_rank() == 0:
        document = {"rows": rows, "reports": {options.methods[0]: {}}}
        options.output.write_text(json.dumps(document), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # past Gloo's end, which waits for pairs that other hosts have closed


if __name__ == "__main__":
    main()
