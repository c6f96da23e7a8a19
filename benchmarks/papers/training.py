"""Trainings by simulated workers, looked into as they go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from benchmarks._accuracy_runs import Line, make_optimizer
from benchmarks._accuracy_simulated import Workers
from benchmarks._accuracy_tasks import TASKS

SEED = 0


class Training:
    """A training by the package's sessions; iterate to run it.

    Parameters
    ----------
    task : of ``hvd-sparse bench accuracy``
    method : with options behind commas, as its ``--method``
    density : None for a method that has none
    workers : that share a step's examples
    steps : how many
    """

    def __init__(
        self, task: str, method: str, density: float | None, workers: int, steps: int
    ) -> None:
        torch.set_num_threads(1)
        line = Line(task, "sgd", method, density, "kept", 0.0, workers, steps)
        self._task, self._steps, self._each = TASKS[task], steps, TASKS[task].batch // workers
        self._data = self._task.load()
        torch.manual_seed(SEED)
        self.network = self._task.network()
        rates = self._task.rates["sgd"]
        self._optimizer = make_optimizer("sgd", self.network, rates[len(rates) // 2])
        self._workers = Workers(line, self.network, self._optimizer)

    def __iter__(self) -> Iterator[int]:
        """Yield every step's number, from 1, once it is done."""
        for step in range(self._steps):
            chosen = self._data.draw(SEED, step, self._task.batch)
            found = []
            for mine in chosen.split(self._each):
                self.network.zero_grad()
                self._data.loss(self.network, mine).backward()  # type: ignore[no-untyped-call]
                found.append({n: p.grad.numpy() for n, p in self.network.named_parameters()})
            self._workers.reduce(found)
            self._optimizer.step()
            yield step + 1

    def residuals(self) -> np.ndarray:
        """Return what each worker keeps back, of all compressed tensors, float32 [workers, n]."""
        return np.stack(
            [
                np.concatenate(
                    [
                        state.memory.arrays()["residual"]
                        for _, state in sorted(session.step.transactions.settle_all().items())
                    ]
                )
                for session in self._workers.sessions
            ]
        )

    def report(self) -> dict[str, Any]:
        """Return what the first worker's ``stats()`` would tell."""
        return self._workers.report(None)
