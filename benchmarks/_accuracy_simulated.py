"""Simulated workers of ``scripts/bench accuracy``: one process, one network.

Replicas of a network are identical, so one stands for all.  Every worker's gradients are computed
in turn, from its own examples; then every worker's numpy session reduces them in a thread of its
own, and what the first gets is applied once the others have got the same.  What is handed over to
the memory is what ``optimizer=`` hands over.

Dense training needs no workers: the average of their gradients is the gradient of all examples.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._accuracy_runs import (
    Line,
    Run,
    dense_bytes,
    make_optimizer,
    options_of,
    sent_of,
    train,
)
from benchmarks._accuracy_tasks import TASKS
from hvd_sparse.collectives.local import LocalCollective, LocalWorld
from hvd_sparse.frontend.torch.arrays import flatten, spec_of
from hvd_sparse.frontend.torch.optimizer import Follower, read_optimizer
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.methods import Methods
from hvd_sparse.methods.spelling import read_method
from hvd_sparse.step.session import Session

TIMEOUT_S = 600.0


class Arrived:
    """What a handed-over optimizer asks of its compressor: every gradient is a session's result."""

    def among(self, parameters: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return [parameter for parameter in parameters if parameter.grad is not None]

    def others_among(self, _: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        return []

    def tell_of_decay(self, _: Any) -> None:
        """Nothing moves parameters here."""

    def end_step(self, _: torch.optim.Optimizer) -> None:
        """Nothing is thrown away here."""


class Simulated(Methods):
    """The named methods, of which only the configuration is wanted."""

    has_begun = True
    results = Arrived()
    configuration: Any
    follower: Follower

    @classmethod
    def _create(cls, params: Any, configuration: Any, process_set: Any, grad_scaler: Any) -> Any:
        made = cls()
        made.configuration = configuration
        return made

    @classmethod
    def _read_optimizer(cls, optimizer: Any) -> Any:
        return read_optimizer(optimizer)

    def take_over(self, optimizer: Any) -> None:
        self.follower = Follower(optimizer, self)


class Workers:
    """Sessions of all workers of a line.

    Parameters
    ----------
    line : with a method that is not "dense"
    network : the one that all train
    optimizer : of the network; changed where it is handed over

    Attributes
    ----------
    work_s : processor time of all workers' steps
    """

    def __init__(self, line: Line, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        options = options_of(line, optimizer)
        made: Any = read_method(line.method).create(Simulated, None, timeout_s=None, **options)
        self.work_s = 0.0
        self._named = list(network.named_parameters())
        self._specs = [spec_of(name, parameter) for name, parameter in self._named]
        self._world = LocalWorld(line.workers, timeout_s=TIMEOUT_S)
        kernels = resolve_engine(None)

        def open_session(collective: LocalCollective) -> Session:
            return Session(made.configuration, self._specs, collective, kernels=kernels)

        self.sessions = self._world.run(open_session)
        if line.way == "handed":
            for session in self.sessions:
                session.step.settings_of = lambda position: made.follower.settings_of(
                    self._specs[position].key,
                    self._named[position][1],
                    lambda: flatten(self._named[position][1], self._specs[position]),
                )

    def reduce(self, gradients: list[dict[str, np.ndarray]]) -> None:
        """Leave the reduced gradients in the network.

        Raises
        ------
        AssertionError : the workers were given different ones
        """
        began_s = time.process_time()
        reduced = self._world.run(
            lambda collective: self.sessions[collective.rank].reduce(gradients[collective.rank])
        )
        self.work_s += time.process_time() - began_s
        for name, parameter in self._named:
            first = reduced[0][name]
            if any(other[name].tobytes() != first.tobytes() for other in reduced[1:]):
                raise AssertionError(f"the workers have different gradients of {name}")
            parameter.grad = torch.from_numpy(first)

    def report(self, density: float | None) -> dict[str, Any]:
        """Return what the first worker has sent."""
        report: dict[str, Any] = self.sessions[0].step.stats.report(density)
        return report


def simulate(run: Run) -> dict[str, Any]:
    """Train by simulated workers; return the result, JSON-able."""
    torch.set_num_threads(1)
    line, began = run.line, time.process_time()
    task = TASKS[line.task]
    data = task.load()
    torch.manual_seed(run.seed)
    network = task.network()
    optimizer = make_optimizer(line.optimizer, network, run.rate)
    workers = None if line.method == "dense" else Workers(line, network, optimizer)
    each = line.batch // line.workers

    def gradients_of(chosen: torch.Tensor) -> float:
        network.zero_grad()
        loss = data.loss(network, chosen)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    def reduced(chosen: torch.Tensor) -> float:
        if workers is None:
            return gradients_of(chosen)
        losses, found = [], []
        for mine in chosen.split(each):
            losses.append(gradients_of(mine))
            found.append({n: p.grad.numpy() for n, p in network.named_parameters()})
        workers.reduce(found)
        return float(np.mean(losses))

    result = train(run, data, network, optimizer, reduced)
    if workers is None:
        sent = {"density": None, "bytes": dense_bytes(network), "work_ms": None}
    else:
        work_ms = round(1e3 * workers.work_s / line.steps / line.workers, 3)
        sent = {**sent_of(workers.report(line.density), line), "work_ms": work_ms}
    return {**result, **sent, "seconds": round(time.process_time() - began, 1)}
