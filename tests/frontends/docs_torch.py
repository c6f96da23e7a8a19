"""Worker: runs the documentation's blocks for PyTorch, and trains two steps with what they make."""

from __future__ import annotations

from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _torch_cases import digest_of, run_torch_cases
from blocks import blocks_for
from torch import nn

from hvd_sparse.frontend.compression import SendNothing
from hvd_sparse.torch import Compression


def prelude() -> dict[str, Any]:
    """Return what every block finds: a model, its optimizer, a batch, as a program has them."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, 32))
    draw = torch.Generator().manual_seed(hvd.rank())
    data = torch.randn(8, 32, generator=draw)
    return {
        "torch": torch,
        "nn": nn,
        "Compression": Compression,
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        "loss_function": nn.functional.mse_loss,
        "loader": [(data, data)] * 3,
        "inputs": data,
        "targets": data,
        "steps_per_epoch": 4,
        "epochs": 1,
        "total_steps": 4,
    }


def train(names: dict[str, Any]) -> dict[str, Any]:
    """Take two steps with a block's optimizer, if it is Horovod's by then.

    A block that does not import Horovod shows a compressor alone; it gets Horovod's optimizer here.
    """
    optimizer, model = names["optimizer"], names["model"]
    if "hvd" not in names and "compression" in names:
        named = model.named_parameters()
        optimizer = names["optimizer"] = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=names["compression"]
        )
    if not hasattr(optimizer, "synchronize"):
        return {"is_trained": False}
    for _ in range(2):
        optimizer.zero_grad()
        names["loss_function"](model(names["inputs"]), names["targets"]).backward()
        optimizer.step()
    compression = names.get("compression", names.get("compressor"))
    report = compression.stats() if hasattr(compression, "stats") else {}
    weights = [each for name, each in model.named_parameters()]
    return {
        "is_trained": True,
        "digest": digest_of(weights),
        "sparse_steps": report.get("sparse_steps"),
        "is_apart": isinstance(compression, SendNothing),
    }


def run(block: Any, names: dict[str, Any], _: str) -> dict[str, Any]:
    """Run a block in its names, and train."""
    if not block.goes_on:
        names.clear()
        names.update(prelude())
    exec(compile(block.text, block.name, "exec"), names)
    return train(names)


if __name__ == "__main__":
    hvd.init()
    shared: dict[str, Any] = {}
    blocks = blocks_for("torch")
    run_torch_cases({block.name: partial(run, block, shared) for block in blocks})
