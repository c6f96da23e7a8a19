"""Streams of real gradients: training under error feedback, one worker, seen step by step.

The model is trained through the package's own pipeline, with exact top-k.  Others listen to the
same gradients: every listener keeps its own residual, memo and warm start, as it would in a
training of its own.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch
from rich.progress import Progress

import hvd_sparse.selectors
from benchmarks._models import Task
from hvd_sparse.configuration import Configuration
from hvd_sparse.exchanges.members import Outgoing
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

SEED = 20210219
MIN_NUMEL = 1024


class Listener:
    """One selector on one tensor's gradients, with a residual of its own, by the reference kernels
    or another engine's."""

    def __init__(self, selector: Any, spec: TensorSpec, engine: Any = "numpy") -> None:
        configuration = Configuration.create(selector=selector, min_numel=1, allow_dense=False)
        self.pipeline = Pipeline(configuration, resolve_engine(engine))
        self.state = TensorState(spec, configuration)

    def accumulated(self, gradient: np.ndarray) -> np.ndarray:
        """Return the vector of this step's selection, bit for bit: gradient + residual."""
        residual: np.ndarray = self.state.memory.arrays()["residual"]
        return residual + gradient

    def step(self, gradient: np.ndarray) -> Outgoing:
        outgoing = self.pipeline.send(self.state, gradient, 0, 1, dense=False)
        self.state.commit()
        return outgoing

    def decode(self, outgoing: Outgoing) -> np.ndarray:
        """Return the dense gradient after the exchange."""
        dense = np.zeros(self.state.spec.numel, self.state.spec.accumulator)
        parts = [(slice(0, dense.size), outgoing.frame)]
        self.pipeline.receive(self.state.spec, parts, 1.0, dense, self.state.steps - 1)
        return dense


@dataclass(frozen=True)
class StreamStep:
    """One step of one model: flat float32 vectors by tensor name."""

    step: int
    loss: float
    gradients: dict[str, np.ndarray]
    accumulated: dict[str, np.ndarray]


class Stream:
    """A training; iterate to run it.  Steps count from 1.

    Parameters
    ----------
    make_task : makes the model, with the random numbers seeded just before
    density : of the exact top-k that the model is trained with
    steps : how many
    """

    def __init__(self, make_task: Any, density: float, steps: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(SEED)
        self.task: Task = make_task()
        self.steps = steps
        self._rng = np.random.default_rng(SEED)
        self._weights = {
            name: p for name, p in self.task.model.named_parameters() if is_compressed(p)
        }
        self.specs = {
            name: TensorSpec(name, tuple(p.shape), "float32") for name, p in self._weights.items()
        }
        selector = {"id": "topk", "density": density}
        self._listeners = {name: Listener(selector, spec) for name, spec in self.specs.items()}

    def __iter__(self) -> Iterator[StreamStep]:
        optimizer = torch.optim.SGD(self.task.model.parameters(), lr=self.task.learning_rate)
        for step in range(1, self.steps + 1):
            optimizer.zero_grad()
            loss = self.task.loss(*self.task.batch(self._rng))
            loss.backward()
            if self.task.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.task.model.parameters(), self.task.clip_norm)
            gradients = {
                name: p.grad.numpy().reshape(-1).copy() for name, p in self._weights.items()
            }
            accumulated = {
                name: self._listeners[name].accumulated(g) for name, g in gradients.items()
            }
            self._sparsify(gradients)
            optimizer.step()
            yield StreamStep(step, float(loss.detach()), gradients, accumulated)

    def _sparsify(self, gradients: dict[str, np.ndarray]) -> None:
        for name, parameter in self._weights.items():
            listener = self._listeners[name]
            dense = listener.decode(listener.step(gradients[name]))
            parameter.grad = torch.from_numpy(dense).reshape(parameter.shape)


def is_compressed(parameter: torch.Tensor) -> bool:
    """Tell whether the common options compress a tensor: matrices and more, of at least 1024
    entries."""
    return parameter.dim() > 1 and parameter.numel() >= MIN_NUMEL


def watch(stream: Stream, progress: Progress, title: str) -> Iterator[StreamStep]:
    """Yield the stream's steps, with a bar of the progress and the loss."""
    bar = progress.add_task(title, total=stream.steps)
    for step in stream:
        yield step
        progress.update(bar, advance=1, description=f"{title}  loss {step.loss:.2f}")


def environment() -> dict[str, str]:
    """Return the versions and the processor on which results depend."""
    packages = ("numpy", "torch", "scipy", "scikit-learn")
    return {
        "processor": f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}, 1 thread",
        "python": platform.python_version(),
        "hvd_sparse": hvd_sparse.__version__,
        **{package: metadata.version(package) for package in packages},
    }


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """Return a table whose first column is aligned to the left, and all others to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def json_by_line(head: dict[str, Any], lists: dict[str, list[dict[str, Any]]]) -> str:
    """Return one JSON object with every member of its lists on a line of its own, so that changes
    can be read."""
    parts = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in head.items()]
    for name, members in lists.items():
        lines = ",\n".join(json.dumps(member) for member in members)
        parts.append(f"{json.dumps(name)}: [\n{lines}\n]")
    return "{" + ",\n".join(parts) + "}\n"
