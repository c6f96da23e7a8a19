"""Density 1 trains as DistributedDataParallel without a hook does, whatever DDP is told."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from _common import SPARSE_ONLY, Cases
from _ddp_cases import SMALL_BUCKETS, digest_of, flat_parameters, loss_of, network
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register

STEPS = 5
Make = Callable[[Any], torch.optim.Optimizer]


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1)


def zero_redundancy(parameters: Any) -> torch.optim.Optimizer:
    return ZeroRedundancyOptimizer(parameters, optimizer_class=torch.optim.SGD, lr=0.1)


def train(
    model: DistributedDataParallel,
    optimizer: torch.optim.Optimizer,
    *,
    dtype: torch.dtype,
    passes: int,
    scaler: Any,
) -> None:
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(passes):
            last = number == passes - 1
            with contextlib.nullcontext() if last else model.no_sync():
                loss = loss_of(model, passes * step + number, dtype)
                (loss if scaler is None else scaler.scale(loss)).backward()
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()


def beside_dense(
    name: str,
    *,
    dtype: torch.dtype = torch.float32,
    make: Make = sgd,
    passes: int = 1,
    scaled: bool = False,
    sparse: bool = True,
    **options: Any,
) -> dict[str, Any]:
    """How far training with the hook ends from training without, in units of the way."""
    ends, stats = [], {}
    options_of = {True: SPARSE_ONLY, False: {"min_numel": 64}}
    for hooked in (False, True):
        model = DistributedDataParallel(network(dtype), **options)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0) if scaled else None
        handle = None
        if hooked:
            common = {"density": 1.0, "name": name, "grad_scaler": scaler}
            handle = register(model, "topk", **common, **options_of[sparse])
        train(model, make(model.parameters()), dtype=dtype, passes=passes, scaler=scaler)
        ends.append(flat_parameters(model))
        if handle is not None:
            stats = handle.stats()
            handle.close()
    moved = float((ends[0] - flat_parameters(network(dtype))).abs().max())
    return {
        "difference": float((ends[0] - ends[1]).abs().max()) / moved,
        "digest": digest_of([ends[1]]),
        "sparse_steps": stats["sparse_steps"],
        "dense_steps": stats["dense_steps"],
    }


DENSITY_ONE: dict[str, dict[str, Any]] = {
    "plain": {},
    "small_buckets": SMALL_BUCKETS,
    "bucket_view": {"gradient_as_bucket_view": True, **SMALL_BUCKETS},
    "find_unused": {"find_unused_parameters": True, **SMALL_BUCKETS},
    "static_graph": {"static_graph": True, **SMALL_BUCKETS},
    "accumulated": {"passes": 3, **SMALL_BUCKETS},
    "loss_scale": {"scaled": True},
    "zero_redundancy": {"make": zero_redundancy},
    "float64": {"dtype": torch.float64},
    "float16": {"dtype": torch.float16},
    "bfloat16": {"dtype": torch.bfloat16},
    "goes_dense": {"sparse": False},
}
cases = Cases(
    {
        f"density_one_{name}": partial(beside_dense, **options)
        for name, options in DENSITY_ONE.items()
    }
)


@cases
def mixed_dtypes(name: str) -> dict[str, Any]:
    """A layer of float64 beside those of float32: DDP puts them into buckets of their own."""

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.narrow, self.wide = network(), nn.Linear(4, 4).double()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.wide(self.narrow(inputs).double()).float()

    ends = []
    for hooked in (False, True):
        torch.manual_seed(2)
        model = DistributedDataParallel(Mixed())
        handle = register(model, "topk", density=1.0, name=name, **SPARSE_ONLY) if hooked else None
        optimizer = sgd(model.parameters())
        train(model, optimizer, dtype=torch.float32, passes=1, scaler=None)
        ends.append(flat_parameters(model))
        if handle is not None:
            handle.close()
    return {"difference": float((ends[0] - ends[1]).abs().max())}
