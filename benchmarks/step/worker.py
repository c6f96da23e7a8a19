"""One rank of ``python -m benchmarks step``: measures one method with each model."""

from __future__ import annotations

import argparse
import gc
import os
import random
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import horovod.torch as hvd
import torch

from benchmarks._ranks import report
from benchmarks.step.meter import PARTS, Meter
from benchmarks.step.models import tensors_of
from benchmarks.step.replay import Replay
from examples.spelling import Spelled, density_argument, read_method
from hvd_sparse.torch import Compression

WARM = 6
"""Number of untimed steps with our methods; Horovod's methods have two."""
WARM_MOMENTUM = 10
"""Number of further untimed steps for a method with momentum, in which the velocity grows."""
FEWEST_WARM, WARM_S = 2, 3.0
"""Smallest number of untimed steps, and the seconds after which they end for a slow method."""
FEWEST, MOST = 3, 60
"""Smallest and largest number of rounds."""
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "None": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9, weight_decay=1e-4),
    "nesterov": lambda parameters: torch.optim.SGD(
        parameters, lr=0.01, momentum=0.9, nesterov=True
    ),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
}
"""Optimizers by the text after ``optimizer=`` in a method."""
Turn = Callable[[], dict[str, float]]
"""A part of a round; returns its columns of the row."""
HOROVODS = {"dense": hvd.Compression.none, "fp16": hvd.Compression.fp16}


class Rank:
    def __init__(self, model: str, method: str, density: Spelled) -> None:
        tensors = tensors_of(model)
        self.replay = Replay([shape for _, shape in tensors], seed=hvd.rank() + 1)
        named = [(f"{model}.{name}", p) for (name, _), p in zip(tensors, self.replay.parameters)]
        self.is_ours = method not in HOROVODS
        with _hooks_on_one_rank():
            optimizer, compression, self.follow = _compression(method, named, density)
            self.meter = Meter(compression)
            self.optimizer = hvd.DistributedOptimizer(
                optimizer, named_parameters=named, compression=self.meter
            )
        self._number = 0

    def warm_up(self) -> None:
        """Make steps until thresholds and residuals hardly change."""
        steps = 2
        if self.is_ours:
            steps = WARM
            memory = self.meter.inner.config()["memory"]
            density = self.meter.inner.stats()["density_asked"]  # the mean, where each has its own
            momentum = memory.get("momentum", 0.0)
            self.replay.draw_steady(density, 1.0 / (1.0 - momentum))
            self.step()
            if momentum:  # the residual stays, its velocity goes
                self.replay.draw_steady(density, -momentum / (1.0 - momentum))
                self.step()
                steps += WARM_MOMENTUM
        began = time.perf_counter()
        for number in range(steps):
            self._draw()
            self.step()
            if number + 1 >= FEWEST_WARM and seconds_since(began) > WARM_S:
                break
        self.floor()

    def check_gradients(self) -> None:
        """Make a step, and raise AssertionError if autograd copies a gradient in it."""
        hooks = [
            parameter.register_post_accumulate_grad_hook(
                lambda _, position=position: self.replay.check_handed_over(position)
            )
            for position, parameter in enumerate(self.replay.parameters)
        ]
        self._draw()
        self.step()
        for hook in hooks:
            hook.remove()

    def turns(self) -> list[Turn]:
        """Return the parts of a round: a step, the floor and, with our methods, a traced step."""
        return [self.plain, self.floor, *([self._traced] if self.is_ours else [])]

    def _draw(self) -> None:
        self._number += 1
        self.replay.draw(self._number)

    def plain(self) -> dict[str, float]:
        self._draw()
        return self.step()

    def _traced(self) -> dict[str, float]:
        self._draw()
        self.step(is_traced=True)
        return {part: self.meter.seconds[part] for part in PARTS}

    def step(self, *, is_traced: bool = False) -> dict[str, float]:
        """Make one step with the present gradients, at the same time on all ranks."""
        self.optimizer.zero_grad()
        loss = self.replay.loss()
        self.meter.clear()
        hvd.barrier()
        with self.meter.tracing() if is_traced else nullcontext():
            faults = _page_faults()
            began, worked = time.perf_counter(), time.process_time()
            loss.backward()
            self.optimizer.synchronize()
            wall, worked = time.perf_counter() - began, time.process_time() - worked
            faults = _page_faults() - faults
        with self.optimizer.skip_synchronize():
            self.optimizer.step()  # the compressor takes results back that are not applied
        self.follow()
        seconds = ("compress", "decompress", "sparse", "dense")
        return {
            "wall": wall,
            "process": worked,
            "faults": float(faults),
            **{name: self.meter.seconds[name] for name in seconds},
            **{f"{kind}_tensors": float(self.meter.calls[kind]) for kind in ("sparse", "dense")},
        }

    def floor(self) -> dict[str, float]:
        """Measure the floor, which only adds the gradients to residuals."""
        hvd.barrier()
        began, worked = time.perf_counter(), time.thread_time()
        self.replay.add_to_residuals()
        worked, wall = time.thread_time() - worked, time.perf_counter() - began
        return {"floor": worked, "floor_wall": wall}

    def close(self) -> None:
        if self.is_ours:
            self.meter.inner.close()


def _compression(
    method: str, named: Sequence[Any], density: Spelled
) -> tuple[torch.optim.Optimizer, Any, Callable[[], Any]]:
    """Return an optimizer, a compression and a function to call after each step. The compression
    gets the optimizer if ``optimizer=`` says so, and with ``steps=`` a scheduler."""
    parameters = [parameter for _, parameter in named]
    if method in HOROVODS:
        return torch.optim.SGD(parameters, lr=0.0), HOROVODS[method], lambda: None
    spelled = read_method(method)
    handed = spelled.options.pop("optimizer", None)
    options: dict[str, Any] = {"density": density}
    optimizer, follow = OPTIMIZERS[str(handed)](parameters), lambda: None
    if handed is not None:
        options["optimizer"] = optimizer
    if "steps" in spelled.options:
        steps: Any = spelled.options["steps"]
        options["scheduler"] = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        follow = options["scheduler"].step
    return optimizer, spelled.create(Compression, named, **options), follow


@contextmanager
def _hooks_on_one_rank() -> Iterator[None]:
    """While the block runs, Horovod calls its compression on one rank too, as in elastic runs."""
    if hvd.size() > 1:
        yield
    else:
        with mock.patch.dict(os.environ, {"HOROVOD_ELASTIC": "1"}):
            yield


def seconds_since(began: float) -> float:
    """Return the mean of all ranks' seconds since ``began``, so that they stop at the same
    round."""
    spent = torch.tensor([time.perf_counter() - began], dtype=torch.float64)
    return float(hvd.allreduce(spent, name="bench.spent"))


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def measure(model: str, options: argparse.Namespace) -> dict[str, Any]:
    rank = Rank(model, options.method, options.density)
    rank.warm_up()
    rank.check_gradients()
    before = _sent(rank)
    rows = rounds(rank.turns(), options.seconds)
    counted = {name: value - before[name] for name, value in _sent(rank).items()}
    rank.close()
    return {"model": model, "gradient_bytes": rank.replay.nbytes, "rows": rows, "sent": counted}


def rounds(turns: Sequence[Turn], seconds: float) -> list[dict[str, float]]:
    """Run rounds for at least ``seconds``, at most ``MOST`` rounds, and return a row for each. In a
    round, all turns run one after the other."""
    rows, began = [], time.perf_counter()
    gc.collect()
    gc.disable()  # it runs when it likes
    for number in range(MOST):
        row: dict[str, float] = {}
        for turn in random.Random(number).sample(turns, len(turns)):  # alike on all ranks
            row |= turn()
        rows.append(row)
        if seconds_since(began) > seconds and number + 1 >= FEWEST:
            break
    gc.enable()
    return rows


def _sent(rank: Rank) -> dict[str, int]:
    """Return the compressor's counts so far; an empty dictionary for Horovod's own methods."""
    if not rank.is_ours:
        return {}
    stats = rank.meter.inner.stats()
    names = ("sparse_steps", "dense_steps", "one_pass", "entries_sent", "entries_total")
    return {name: int(stats[name]) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+")
    parser.add_argument("--method")
    parser.add_argument("--density", type=density_argument)
    parser.add_argument("--seconds", type=float)
    options = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    found = []
    for model in options.models:
        found.append(measure(model, options))
        gc.collect()
    report(hvd.rank(), found)
    hvd.barrier()


if __name__ == "__main__":
    main()
