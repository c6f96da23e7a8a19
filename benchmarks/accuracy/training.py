"""Runs of the accuracy benchmark: a training by one rule, with one learning rate and seed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.accuracy import rules
from benchmarks.accuracy.ours import Ours, density_of
from benchmarks.accuracy.tasks import TASKS, WORKERS, Task, make_optimizer

SPARSE_DENSITY = 0.001
WARMUP, STAGES = 0.25, 4
"""Warm-up of ``dgc``: its fraction of the steps, and its number of densities."""
PART = 0.25
"""Fraction of the test data on which a point of a learning curve is measured."""


@dataclass(frozen=True, order=True)
class Line:
    """A training without its learning rate and seed."""

    task: str
    optimizer: str
    rule: str  # of NAMED or RULES, with what it is told behind slashes
    steps: int


@dataclass(frozen=True, order=True)
class Run:
    line: Line
    rate: float
    seed: int
    is_real: bool = False


class Training:
    def __init__(self, task: Task, optimizer: str, rate: float, steps: int, seed: int) -> None:
        torch.set_num_threads(1)
        self.task, self.steps, self.seed = task, steps, seed
        self.data = task.load()
        torch.manual_seed(seed)
        self.network = task.network()
        self.optimizer = make_optimizer(optimizer, self.network, rate)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, steps)
        self.curve: list[tuple[int, float]] = []

    @property
    def compressed(self) -> tuple[int, ...]:
        return tuple(p.numel() for p in self.network.parameters() if rules.is_compressed(p))

    def of(self, kind: Callable[..., rules.Dense], *told: Any, workers: int = WORKERS) -> Any:
        return kind(self.network, self.optimizer, workers, *told)

    def gradients(self, chosen: torch.Tensor) -> tuple[list[torch.Tensor], float]:
        self.network.zero_grad()
        loss = self.data.loss(self.network, chosen)
        loss.backward()  # type: ignore[no-untyped-call]
        return [p.grad for p in self.network.parameters() if p.grad is not None], loss.item()

    def run(self, rule: rules.Dense, points: int = 0) -> dict[str, Any]:
        """Train with a learning rate that falls to 0 along a cosine; return JSON-serializable
        results."""
        losses: list[float] = []
        for step in range(self.steps):
            losses.append(
                rule.step(self.data.draw(self.seed, step, self.task.batch), self.gradients)
            )
            if not math.isfinite(losses[-1]):
                break
            # rules may move the parameters without a call of the optimizer's step
            self.scheduler.optimizer._opt_called = True
            self.scheduler.step()
            done = step + 1
            if points and (done == self.steps or done % max(1, self.steps // points) == 0):
                self.curve.append((done, round(self.data.score(self.network, PART), 4)))
        rule.finish()
        last, has_ended = losses[-max(1, self.steps // 10) :], math.isfinite(losses[-1])
        nbytes = rule.entry_bytes / len(losses)
        return {
            "score": round(self.data.score(self.network), 5) if has_ended else None,
            "loss": round(sum(last) / len(last), 5) if has_ended else None,
            "bytes": round(nbytes, 1),
            "part": round(nbytes / (4 * sum(self.compressed)), 8),
        }


def _ours(training: Training, *told: str) -> tuple[str, dict[str, Any]]:
    """Return our method and its options. It gets the number of steps and, if there is a budget of
    bytes, the density for it."""
    options: dict[str, Any] = {"optimizer": training.optimizer, "steps": training.steps}
    if told:
        options["density"] = density_of(1 / float(told[0]), training.compressed)
    return "ldte_bs", {**options, "scheduler": training.scheduler}


def _with_velocity(
    training: Training, budget: str, *, is_masked: bool
) -> tuple[str, dict[str, Any]]:
    method, options = _ours(training, budget)
    return method, {**options, "memory": {"id": "momentum_correction", "masking": is_masked}}


def _topk(training: Training, way: str) -> tuple[str, dict[str, Any]]:
    """Return top-k with exact values. The compressor gets the optimizer if ``way`` is "handed";
    otherwise the program keeps it."""
    handed = {"optimizer": training.optimizer} if way == "handed" else {}
    return "topk", {"density": SPARSE_DENSITY, **handed}


def _dgc(training: Training) -> tuple[str, dict[str, Any]]:
    warmup = {
        "id": "exponential_warmup",
        "value": SPARSE_DENSITY,
        "stage_steps": max(1, round(WARMUP * training.steps / STAGES)),
        "stages": STAGES,
    }
    options = {"density": SPARSE_DENSITY, "optimizer": training.optimizer, "schedule": warmup}
    return "dgc", options


NAMED: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {
    "ours": _ours,
    "topk": _topk,
    "dgc": _dgc,
    "masked": partial(_with_velocity, is_masked=True),
    "unmasked": partial(_with_velocity, is_masked=False),
}
"""Functions that return a named method of the package and its options, by rule."""
RULES: dict[str, Callable[..., rules.Dense]] = {
    "dense": lambda training: training.of(rules.Dense, workers=1),
    "powersgd": lambda training, rank: training.of(rules.PowerSGD, int(rank)),
    "one_bit_adam": lambda training: training.of(rules.OneBitAdam, training.steps),
    "sparse_loco": lambda training, *told: training.of(rules.SparseLoCo, *map(int, told)),
    "demo": lambda training, entries: training.of(rules.DeMo, int(entries)),
    "fp16": lambda training: training.of(rules.Fp16),
}
"""Dense training and the rules of others."""


def train(run: Run) -> dict[str, Any]:
    """Train with simulated workers; return the result, with the CPU time in seconds."""
    line, began_s = run.line, time.process_time()
    training = Training(TASKS[line.task], line.optimizer, run.rate, line.steps, run.seed)
    name, *told = line.rule.split("/")
    if name in NAMED:
        rule = training.of(Ours, *NAMED[name](training, *told))
    else:
        rule = RULES[name](training, *told)
    return {**training.run(rule), "seconds": round(time.process_time() - began_s, 1)}
