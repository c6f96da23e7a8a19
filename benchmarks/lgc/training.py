"""A training whose workers send the values at one leader's largest entries, exact or by LGC."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from benchmarks._accuracy_runs import make_optimizer
from benchmarks._accuracy_tasks import TASKS
from benchmarks.lgc.autoencoder import Learner, scale_of
from hvd_sparse.checks import count_from_density

SEED = 0
LEAST_NUMEL = 1024
"""Smaller tensors go dense."""


class Run:
    """Plain SGD by simulated workers that share a step's examples.

    At every step the leader, in turns, chooses its largest entries tensor by tensor; all workers'
    accumulated values there are averaged, and the rest stays in their residuals.

    Parameters
    ----------
    task : of ``hvd-sparse bench accuracy``
    density : part of the entries sent
    workers : how many
    innovation : part of the entries that LGC sends as they are
    phases : steps that are dense, and further ones in which the autoencoder learns; behind them it
        is applied.  None never applies it
    """

    def __init__(
        self,
        task: str,
        density: float,
        workers: int,
        innovation: float,
        phases: tuple[int, int] | None,
    ) -> None:
        self._task, self._density, self._phases = TASKS[task], density, phases
        self._workers, self.data = workers, self._task.load()
        torch.manual_seed(SEED)
        self.network = self._task.network()
        rates = self._task.rates["sgd"]
        self._optimizer = make_optimizer("sgd", self.network, rates[len(rates) // 2])
        self._named = [p for p in self.network.parameters() if p.ndim > 1]
        self._named = [p for p in self._named if p.numel() >= LEAST_NUMEL]
        self.numel = sum(p.numel() for p in self._named)
        self._residuals = torch.zeros(workers, self.numel)
        self.learner = Learner(max(1, count_from_density(self.numel, innovation)))

    def steps(self, count: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield the values that all workers have at a step's indices, [workers, k], and these."""
        dense_steps, learning_steps = self._phases or (0, math.inf)
        for step in range(count):
            gradients = self._gradients(step)
            if step < dense_steps:
                self._apply(gradients.mean(0))
                continue
            accumulated = self._residuals.add_(gradients)
            chosen = self._choose(accumulated[step % self._workers])
            vectors = accumulated[:, chosen]
            accumulated[:, chosen] = 0.0
            applied = vectors.mean(0)
            if step < dense_steps + learning_steps:
                self.learner.learn(vectors)
            else:
                applied = self.rebuilt(vectors)
            whole = torch.zeros(self.numel)
            whole[chosen] = applied
            self._apply(whole)
            yield vectors, chosen

    def rebuilt(self, vectors: torch.Tensor) -> torch.Tensor:
        """Return what LGC makes of the workers' values: the decoded mean of their codes."""
        scale = scale_of(vectors)
        codes = torch.stack([self.learner.encode(vector, scale) for vector in vectors])
        return self.learner.decode(codes.mean(0), vectors.mean(0), scale)

    def _gradients(self, step: int) -> torch.Tensor:
        """Return every worker's gradient, [workers, numel]; small tensors get their mean."""
        chosen = self.data.draw(SEED, step, self._task.batch)
        rows, small = [], [p for p in self.network.parameters() if id(p) not in self._ids]
        sums = [torch.zeros_like(p) for p in small]
        for mine in chosen.split(self._task.batch // self._workers):
            self.network.zero_grad()
            self.data.loss(self.network, mine).backward()  # type: ignore[no-untyped-call]
            rows.append(torch.cat([p.grad.flatten() for p in self._named if p.grad is not None]))
            for total, parameter in zip(sums, small):
                if parameter.grad is not None:
                    total += parameter.grad / self._workers
        for total, parameter in zip(sums, small):
            parameter.grad = total
        return torch.stack(rows)

    @property
    def _ids(self) -> set[int]:
        return {id(parameter) for parameter in self._named}

    def _choose(self, leaders: torch.Tensor) -> torch.Tensor:
        found, start = [], 0
        for parameter in self._named:
            part = leaders[start : start + parameter.numel()].abs()
            count = count_from_density(parameter.numel(), self._density)
            found.append(part.topk(count).indices.sort().values + start)
            start += parameter.numel()
        return torch.cat(found)

    def _apply(self, gradient: torch.Tensor) -> None:
        start = 0
        for parameter in self._named:
            part = gradient[start : start + parameter.numel()]
            parameter.grad = part.reshape(parameter.shape).clone()
            start += parameter.numel()
        self._optimizer.step()


def relative_error(vector: np.ndarray, back: np.ndarray) -> float:
    """Return the length of the difference beside the vector's."""
    return float(np.linalg.norm(vector - back) / max(float(np.linalg.norm(vector)), 1e-30))
