"""The package's own methods between simulated workers.

The replicas of a network are identical, so there is only one network. Each worker's session
(selection, memory, codec, exchange) reduces the worker's gradients in its own thread. All sessions
must return the same gradients, and the optimizer applies them once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import nn

from benchmarks.accuracy.rules import Dense, Gradients, is_compressed
from examples.spelling import read_method
from hvd_sparse.codecs.sign_mean import SignMean
from hvd_sparse.collectives.local import LocalCollective, LocalWorld
from hvd_sparse.frontend.torch.applying import Follower
from hvd_sparse.frontend.torch.arrays import flatten, spec_of
from hvd_sparse.frontend.torch.optimizer import foresee, read_optimizer
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.methods import Methods
from hvd_sparse.optimizer_memory import Rates
from hvd_sparse.step.session import Session
from hvd_sparse.types import Pace
from hvd_sparse.wire.frame import HEADER_BYTES
from hvd_sparse.wire.message import overhead_bytes

TIMEOUT_S = 600.0


class Arrived:
    """The part of a compressor that an optimizer passed as ``optimizer=`` uses. Here every gradient
    is the result of a session."""

    def split(self, parameters: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], ...]:
        given = [p for p in parameters if p.grad is not None]
        updates = list(filter(is_compressed, given))
        return updates, [p for p in given if not is_compressed(p)]

    def tell_of_others(self, *_: Any) -> None:
        """Do nothing, because every gradient comes from a session."""

    def tell_of_rates(self, *_: Any) -> None:
        """Do nothing, because a step has one rate here."""

    def tell_of_decay(self, *_: Any) -> None:
        """Do nothing, because nothing else changes the parameters here."""

    def end_step(self, _: torch.optim.Optimizer) -> None:
        """Do nothing, because every result is applied here."""


class Simulated(Methods):
    has_begun, _is_closed = True, False
    results = Arrived()
    configuration: Any
    _follower: Follower | None = None
    rates: Rates | None = None

    @classmethod
    def _create(cls, params: Any, configuration: Any, process_set: Any, grad_scaler: Any) -> Any:
        made = cls()
        made.configuration = configuration
        return made

    @classmethod
    def _read_optimizer(cls, optimizer: Any) -> Any:
        return read_optimizer(optimizer)

    @classmethod
    def _foresee(cls, optimizer: Any, scheduler: Any, steps: int | None) -> Rates:
        return foresee(optimizer, scheduler, steps)

    def take_over(self, optimizer: Any) -> None:
        self._follower = Follower(optimizer, self)

    def follow(self, rates: Rates) -> None:
        self.rates = rates

    def log_footprint(self) -> None:
        """Log nothing, because all ranks are in this process."""


class Ours(Dense):
    """Reduces gradients by the sessions of all workers. ``work_s`` is the CPU time of their
    steps."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        workers: int,
        method: str,
        options: dict[str, Any],
    ) -> None:
        super().__init__(network, optimizer, workers)
        self.work_s = 0.0
        spelled = read_method(method)
        self._made: Any = spelled.create(Simulated, None, timeout_s=None, **options)
        self._named = list(network.named_parameters())
        self._specs = [spec_of(name, parameter) for name, parameter in self._named]
        self._world = LocalWorld(workers, timeout_s=TIMEOUT_S)
        kernels = resolve_engine(None)

        def open_session(collective: LocalCollective) -> Session:
            return Session(self._made.configuration, self._specs, collective, kernels=kernels)

        self.sessions = self._world.run(open_session)
        for session in self.sessions:
            if self._made._follower is not None:
                session.step.settings_of = self._settings_of
            if self._made.rates is not None:
                session.step.pace_of = self._pace_of

    def _settings_of(self, position: int) -> Any:
        spec, parameter = self._specs[position], self.parameters[position]
        return self._made._follower.settings_of(
            spec.key, parameter, lambda: flatten(parameter, spec)
        )

    def _pace_of(self, position: int) -> Pace:
        rate, group = self._made._follower.rate_of(self.parameters[position])
        pace: Pace = self._made.rates.pace(rate, group, self.steps - 1)
        return pace

    def step(self, examples: torch.Tensor, gradients: Gradients) -> float:
        self.steps += 1
        found, losses = [], []
        for part in examples.chunk(self.workers):
            each, loss = gradients(part)
            found.append({name: g.numpy() for (name, _), g in zip(self._named, each)})
            losses.append(loss)
        began_s = time.process_time()
        reduced = self._world.run(
            lambda collective: self.sessions[collective.rank].reduce(found[collective.rank])
        )
        self.work_s += time.process_time() - began_s
        for name, parameter in self._named:
            first = reduced[0][name]
            if any(other[name].tobytes() != first.tobytes() for other in reduced[1:]):
                raise AssertionError(f"the workers have different gradients of {name}")
            parameter.grad = torch.from_numpy(first)
        self.optimizer.step()
        return sum(losses) / self.workers

    def finish(self) -> None:
        """Set ``entry_bytes`` to the bytes that the first worker has sent, without headers."""
        step = self.sessions[0].step
        report = step.stats.report(None)
        tensors = report["tensors"]
        nbytes = report["payload_bytes"] - HEADER_BYTES * report["sparse_steps"]
        for members in step.buckets:
            sparse = [tensors[step.specs[m].key]["sparse_steps"] for m in members]
            nbytes -= overhead_bytes(len(members)) * max(sparse)
        for name, parameter in self._named:
            if is_compressed(parameter):
                nbytes += 4 * parameter.numel() * tensors[name]["dense_steps"]
        self.entry_bytes = nbytes


@cache
def density_of(part: float, numels: tuple[int, ...], points: int = 60) -> float:
    """Return the mean density at which ``sign_mean`` sends the fraction ``part`` of the float32
    bytes, if the density follows a cosine."""
    codec = SignMean()
    waves = [1 + math.cos(math.pi * (point + 0.5) / points) for point in range(points)]

    def part_at(density: float) -> float:
        nbytes = sum(
            codec.body_bytes(min(numel, max(1, round(numel * density * wave))), numel)
            for wave in waves
            for numel in numels
        )
        return nbytes / points / sum(4 * numel for numel in numels)

    low, high = 1e-5, 0.2
    for _ in range(16):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if part_at(middle) < part else (low, middle)
    return round(high, 6)
