"""Compares the times of whole steps of a GPT of 29 tensors on one machine: dense, fp16 and sparse.

Every way has its own copy of the network. The ways make steps in turn, in changing order.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks._ranks import launch, report
from benchmarks.accuracy.networks import Block

WIDTH, LETTERS, LENGTH, BATCH = 64, 96, 64, 8
WARMUP = 30
"""Number of untimed steps."""


def network() -> nn.Module:
    """Return a GPT of two blocks without position embeddings, which has 29 tensors."""
    layers = [Block(WIDTH, 1), Block(WIDTH, 1), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, LETTERS)]
    return nn.Sequential(nn.Embedding(LETTERS, WIDTH), *layers)


def trained_by(way: str) -> tuple[nn.Module, Any]:
    import horovod.torch as hvd

    from benchmarks.network.methods import compression

    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    named = [(f"{way}.{name}", parameter) for name, parameter in model.named_parameters()]
    options = {"density": 0.005, "codec": "sign_mean", "optimizer": optimizer}
    made = compression(way, named, options)
    wrapped = hvd.DistributedOptimizer(optimizer, named_parameters=named, compression=made)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, wrapped


def work(options: argparse.Namespace) -> None:
    import horovod.torch as hvd

    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ways = {way: trained_by(way) for way in options.ways}
    letters = torch.randint(LETTERS, (BATCH, LENGTH))
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    order = random.Random(0)
    for _ in range(WARMUP + options.steps):
        for way in order.sample(list(ways), len(ways)):
            model, optimizer = ways[way]
            hvd.allreduce(torch.zeros(1), name="meet")
            began_s = time.perf_counter()
            optimizer.zero_grad()
            predicted = model(letters).flatten(0, 1)
            nn.functional.cross_entropy(predicted, letters.flatten()).backward()
            optimizer.step()
            seconds[way].append(time.perf_counter() - began_s)
    report(hvd.rank(), {way: times[WARMUP:] for way, times in seconds.items()})


def show(seconds: dict[str, list[float]]) -> None:
    """Print a row for each way: the time of its step, also relative to that of the first way."""
    table = Table("way", "step, ms", "quartiles", "times the first")
    base = np.median(next(iter(seconds.values())))
    for way, times in seconds.items():
        low, middle, high = 1e3 * np.percentile(times, [25, 50, 75])
        table.add_row(
            way, f"{middle:.2f}", f"{low:.2f} to {high:.2f}", f"{middle / 1e3 / base:.2f}"
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks waiting",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks (default: 2)")
    parser.add_argument("--steps", type=int, default=300, help="timed steps (default: 300)")
    ways = "dense, fp16 or our methods (default: dense fp16 ldte_bs)"
    parser.add_argument("--ways", nargs="+", default=["dense", "fp16", "ldte_bs"], help=ways)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    arguments = ["--worker", "--steps", str(options.steps), "--ways", *options.ways]
    show(launch("benchmarks.waiting", options.ranks, *arguments, limit_s=2400)[0])


if __name__ == "__main__":
    main()
