"""One rank under DistributedDataParallel: every hook in turn.  Started by
``benchmarks.network.ddp``.

The gradients are given, layer behind layer, so that a step is what DDP and its hook make of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from benchmarks.network.gradients import fill, pool
from hvd_sparse.autotune.costmodel.architectures import parameters
from hvd_sparse.ddp import register

WARMUP = 3
"""Steps before those that are timed: DDP builds its buckets anew, and PowerSGD waits for that."""


class _Layer(torch.autograd.Function):
    """Passes a number on; backward, gives the parameter its gradient."""

    @staticmethod
    def forward(ctx: Any, number: torch.Tensor, _: torch.Tensor, given: torch.Tensor) -> Any:
        ctx.given = given
        return number.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        return grads[0], ctx.given, None


class Given(nn.Module):
    """A model's parameters, with gradients that are given."""

    def __init__(self, model: str, rank: int) -> None:
        super().__init__()
        listed = parameters(model)
        self.weights = nn.ParameterList(nn.Parameter(torch.zeros(each.shape)) for each in listed)
        self.work = torch.empty(sum(parameter.numel() for parameter in self.weights))
        self.source, self.steps = pool(rank), 0

    def draw(self) -> None:
        """Make other gradients."""
        self.steps += 1
        fill(self.work.numpy(), self.source, self.steps)

    def forward(self) -> torch.Tensor:
        number = torch.zeros((), requires_grad=True)
        pieces = self.work.split([parameter.numel() for parameter in self.weights])
        for parameter, piece in zip(self.weights, pieces):
            number = _Layer.apply(number, parameter, piece.view(parameter.shape))
        return number


def hook_on(model: DistributedDataParallel, method: str, density: float) -> Callable[[], None]:
    """Give the model a hook by its name; return what ends it."""
    if method == "dense":
        return lambda: None
    if method == "fp16":
        model.register_comm_hook(None, default_hooks.fp16_compress_hook)
        return lambda: None
    if method.startswith("powersgd"):
        state = powerSGD_hook.PowerSGDState(
            None, int(method.removeprefix("powersgd")), start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        return lambda: None
    name, _, codec = method.partition("+")
    options = {"codec": codec} if codec else {}
    return register(model, name, density=density, **options).close


def received_bytes() -> int:
    """Received by this host's interfaces but the loopback, headers included."""
    lines = Path("/proc/self/net/dev").read_text(encoding="ascii").splitlines()[2:]
    pairs = (line.split(":") for line in lines)
    return sum(int(fields.split()[0]) for name, fields in pairs if name.strip() != "lo")


def measure(bare: Given, method: str, options: argparse.Namespace) -> dict[str, Any]:
    """The slowest rank's seconds of every step, and the bytes that a host receives in one."""
    model = DistributedDataParallel(bare, init_sync=False)
    end, seconds, received = hook_on(model, method, options.density), [], []
    for _ in range(WARMUP + options.steps):
        bare.draw()
        model.zero_grad()
        dist.barrier()
        before, start = received_bytes(), time.perf_counter()
        model().backward()
        taken = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.barrier()
        received.append(received_bytes() - before)
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        seconds.append(float(taken))
    end()
    sums = torch.stack([p.grad.view(torch.int32).sum(dtype=torch.int64) for p in bare.weights])
    told = [torch.empty_like(sums) for _ in range(dist.get_world_size())]
    dist.all_gather(told, sums)
    if any(not torch.equal(each, sums) for each in told):
        raise AssertionError(f"{method}: the averaged gradients differ between ranks")
    return {"seconds": seconds[WARMUP:], "received": statistics.median(received[WARMUP:])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--methods", nargs="+")
    parser.add_argument("--density", type=float)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    bare, rows = Given(options.model, dist.get_rank()), []
    for number in range(options.rounds):
        for method in options.methods:
            rows.append({"method": method, "round": number, **measure(bare, method, options)})
            if dist.get_rank() == 0:
                print(rows[-1], flush=True)
                options.output.write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    os._exit(0)  # past Gloo's end, which waits for pairs that other hosts have closed


if __name__ == "__main__":
    main()
