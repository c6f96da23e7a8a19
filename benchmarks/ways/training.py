"""One training by simulated workers: their gradients in turn, one way for every large tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from benchmarks._accuracy_runs import STAGES, WEIGHT_DECAY
from benchmarks._accuracy_tasks import TASKS
from benchmarks.ways.table import Way, ways_of

WORKERS, DENSITY, WARMUP, MIN_NUMEL = 4, 0.001, 0.25, 1024
CURVE = 12
"""Points of a learning curve."""


@dataclass(frozen=True)
class Training:
    """What is trained.

    Attributes
    ----------
    way : an id of ``ways_of``
    has_warmup : densities fall from 0.25 over the first quarter of the steps
    """

    task: str
    optimizer: str
    way: str
    has_warmup: bool
    rate: float
    seed: int
    steps: int


class Tensor:
    """One tensor under a way.

    Parameters
    ----------
    parameter : of the network
    way : of all tensors; small ones and those of one dimension are dense
    """

    def __init__(self, parameter: nn.Parameter, way: Way) -> None:
        numel = parameter.numel()
        is_sparse = way.worker is not None and numel >= MIN_NUMEL and parameter.dim() > 1
        self.parameter = parameter
        self.worker = way.worker(WORKERS, numel) if is_sparse and way.worker else None
        self.applier = way.applier(numel)

    def direction(self, gradients: torch.Tensor, density: float, step: int) -> torch.Tensor:
        """Return the direction in which the parameter moves, flat.

        Parameters
        ----------
        gradients : a row a worker
        density : of this step
        step : from 1
        """
        if self.worker is None:
            arrived = gradients.mean(0)
        else:
            count = max(1, round(density * gradients.shape[1]))
            arrived = self.worker.send(gradients, count, step)
        return self.applier.apply(arrived, step)


def density_of(step: int, training: Training) -> float:
    """Return the density of a step, from 0: 0.25, 0.0625, ... and then the training's."""
    stage = step // max(1, round(WARMUP * training.steps / STAGES))
    if not training.has_warmup or stage >= STAGES:
        return DENSITY
    return max(DENSITY, 0.25 / 4.0**stage)


def train(training: Training) -> dict[str, Any]:
    """Train; return the score, and a curve of scores on a quarter of the test data."""
    torch.set_num_threads(1)
    torch.manual_seed(training.seed)
    task = TASKS[training.task]
    data, network = task.load(), task.network()
    table = ways_of(training.optimizer, training.steps)
    way = table[training.way]
    # Tensors that go dense are the optimizer's own in every way.
    tensors = [
        Tensor(p, way if p.dim() > 1 and p.numel() >= MIN_NUMEL else table["dense"])
        for p in network.parameters()
    ]
    decay = WEIGHT_DECAY if training.optimizer == "adamw" else 0.0
    parts = 1 if way.worker is None else WORKERS
    curve = []
    for step in range(training.steps):
        chosen = data.draw(training.seed, step, task.batch)
        rows: list[list[torch.Tensor]] = [[] for _ in tensors]
        for mine in chosen.chunk(parts):
            network.zero_grad()
            data.loss(network, mine).backward()  # type: ignore[no-untyped-call]
            for row, tensor in zip(rows, tensors):
                assert tensor.parameter.grad is not None
                row.append(tensor.parameter.grad.flatten().clone())
        rate = training.rate * (1 + math.cos(math.pi * step / training.steps)) / 2
        density = density_of(step, training)
        with torch.no_grad():
            for row, tensor in zip(rows, tensors):
                move = tensor.direction(torch.stack(row), density, step + 1)
                tensor.parameter.mul_(1 - rate * decay)
                tensor.parameter.sub_(rate * move.view_as(tensor.parameter))
        if (step + 1) % max(1, training.steps // CURVE) == 0:
            curve.append((step + 1, round(data.score(network, 0.25), 4)))
    return {"score": round(data.score(network), 5), "curve": curve}
