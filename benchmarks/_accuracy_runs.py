"""Lines and runs of ``scripts/bench accuracy``, and what simulated and real training share."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from benchmarks._accuracy_data import Data
from benchmarks._accuracy_tasks import TASKS
from hvd_sparse.density_text import read_density

WEIGHT_DECAY = 0.01
"""Of AdamW, torch's own."""
STAGES = 4
"""Of a warm-up, whose densities fall from 0.25 by 4."""
SCORES, PART = 12, 0.25
"""Points of a learning curve, and how much of the test data each of them sees."""


@dataclass(frozen=True)
class Line:
    """One line of the page: a training without its learning rate and seed.

    Attributes
    ----------
    method : a named method, or "dense"
    density : as ``read_density`` reads it; None for dense, and for methods without one
    way : "handed" where the optimizer is handed over, "kept" where it is not, "" for dense
    warmup : part of the steps at falling densities
    """

    task: str
    optimizer: str
    method: str
    density: float | str | None
    way: str
    warmup: float
    workers: int
    steps: int
    is_real: bool = False

    @property
    def batch(self) -> int:
        """Examples a step: the task's, or one for each worker where these are more."""
        return max(TASKS[self.task].batch, self.workers)

    def __str__(self) -> str:
        if self.method == "dense":
            return "dense"
        how = ", optimizer kept" if self.way == "kept" else ""
        return f"{self.method}{how}{', warm-up' if self.warmup else ''}"


@dataclass(frozen=True)
class Run:
    """A line with its rate and seed."""

    line: Line
    rate: float
    seed: int

    @property
    def key(self) -> str:
        """Names the run in what is kept of it."""
        return json.dumps(asdict(self), sort_keys=True)


def options_of(line: Line, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a line's method is called with."""
    density = None if line.density is None else read_density(str(line.density))
    options: dict[str, Any] = {} if density is None else {"density": density}
    if line.way == "handed":
        options["optimizer"] = optimizer
    if line.warmup:
        options["schedule"] = {
            "id": "exponential_warmup",
            "value": density,
            "stage_steps": max(1, round(line.warmup * line.steps / STAGES)),
            "stages": STAGES,
        }
    return options


def make_optimizer(name: str, network: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Return the optimizer of a line."""
    if name == "adamw":
        return torch.optim.AdamW(network.parameters(), lr=rate, weight_decay=WEIGHT_DECAY)
    return torch.optim.SGD(
        network.parameters(), lr=rate, momentum=0.9 if name == "momentum" else 0.0
    )


def train(
    run: Run,
    data: Data,
    network: nn.Module,
    optimizer: Any,
    gradients: Callable[[torch.Tensor], float],
    pause: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Train, at a rate that falls to 0 along a cosine; return what is reported.

    gradients : leave the reduced gradients of a step's examples in the network, and return the loss
    pause : called before each point of the learning curve is scored, which is no training
    """
    line = run.line
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, line.steps)
    every = max(1, line.steps // SCORES)
    curve: list[tuple[int, float]] = []
    losses: list[float] = []
    for step in range(line.steps):
        losses.append(gradients(data.draw(run.seed, step, line.batch)))
        optimizer.step()
        schedule.step()
        if (step + 1) % every == 0 or step + 1 == line.steps:
            pause()
            curve.append((step + 1, round(data.score(network, PART), 4)))
    last = losses[-max(1, line.steps // 10) :]
    score, loss = data.score(network), sum(last) / len(last)
    return {"score": round(score, 5), "loss": round(loss, 5), "curve": curve}


def digest_of(network: nn.Module) -> str:
    """Return what tells one network's parameters from another's."""
    whole = hashlib.sha256()
    for parameter in network.parameters():
        whole.update(parameter.detach().numpy().tobytes())
    return whole.hexdigest()


def sent_of(report: dict[str, Any], line: Line) -> dict[str, Any]:
    """Return what a worker has sent, of the report that ``stats()`` gives."""
    density, nbytes = report["density_achieved"], report["bytes_sent"]
    return {
        "density": None if density is None else round(density, 6),
        "bytes": round(nbytes / line.steps),
    }


def dense_bytes(network: nn.Module) -> int:
    """Return the bytes of a step's gradients."""
    return sum(p.numel() * p.element_size() for p in network.parameters())
