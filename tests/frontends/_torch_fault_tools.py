"""Tools for cases that must end in an error: a small model, one step by hand, and what was raised
how soon."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import horovod.torch as hvd
import torch
from _common import caught
from _torch_cases import summed
from harness import slow
from torch import nn

from hvd_sparse.torch import Compression

TIMEOUT_S = slow(5.0)
WIDTH = 6


def last_rank() -> bool:
    """The rank on which faults happen that only one rank has."""
    return hvd.rank() == hvd.size() - 1


def small_model(hidden: int = 8) -> nn.Sequential:
    """The same on every rank; its first parameters, whose gradients come last, are vectors."""
    torch.manual_seed(9)
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, hidden), nn.Tanh(), nn.Linear(hidden, 3)
    )


def compress(named: Iterable[tuple[str, torch.Tensor]], **options: Any) -> Any:
    """A compressor of the matrices; biases go dense."""
    chosen = {
        "density": 0.25,
        "min_numel": 1,
        "allow_dense": False,
        "timeout_s": TIMEOUT_S,
        **options,
    }
    return Compression.topk(named, **chosen)


def optimize(model: nn.Module, compressor: Any, **options: Any) -> Any:
    """Horovod's optimizer, with the compressor's name in those of its allreduces, so that cases do
    not meet there."""
    named = [(f"{compressor.name}.{key}", parameter) for key, parameter in model.named_parameters()]
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    return hvd.DistributedOptimizer(
        descent, named_parameters=named, compression=compressor, **options
    )


def step_of(model: nn.Module, optimizer: Any) -> Callable[[], None]:
    """One training step, as a call."""

    def take() -> None:
        model.zero_grad()
        model(torch.randn(5, WIDTH)).pow(2).mean().backward()
        optimizer.step()

    return take


def reduce_by_hand(compressor: Any, model: nn.Module, **options: Any) -> Callable[[], None]:
    """A step with ``hvd.allreduce`` of what ``compress`` returns, where Horovod's optimizer would
    not ask for it."""

    def take() -> None:
        model.zero_grad()
        model(torch.randn(5, WIDTH)).pow(2).mean().backward()
        pending = []
        for key, parameter in model.named_parameters():
            wire, ctx = compressor.compress(parameter.grad)
            pending.append(
                (hvd.allreduce_async(wire, name=f"{compressor.name}.{key}", **options), ctx)
            )
        for handle, ctx in pending:
            compressor.decompress(hvd.synchronize(handle), ctx)

    return take


def raised_by(action: Callable[[], None]) -> dict[str, Any]:
    return {"raised": caught(action)}


def is_usable(name: str) -> bool:
    """Whether Horovod still adds up."""
    return float(summed(torch.ones(1), f"{name}.usable")) == hvd.size()
