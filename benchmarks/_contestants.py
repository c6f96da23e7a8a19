"""Contestants of ``python -m benchmarks select``: our selectors, the peers', one pass over memory
(the floor), and the sum of received payloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks._gradients import Gradients
from benchmarks._interleaved_timing import Contestant
from benchmarks._peers import PEERS, Peer
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.receiver import write_sum
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

FLOOR = "residual.add_(gradient)"
SELECTORS = ("ldte_bs", "topk")


class Both(NamedTuple):
    """The gradient of a round as a numpy array and as a torch tensor that share memory."""

    array: np.ndarray
    tensor: torch.Tensor

    @classmethod
    def of(cls, vector: np.ndarray) -> Both:
        return cls(vector, torch.from_numpy(vector))


class Ours:
    """One tensor with the package's own code: a step turns a gradient into an encoded payload."""

    def __init__(
        self,
        numel: int,
        selector: Any,
        *,
        rollback: bool = False,
        engine: Any = None,
        residual: np.ndarray | None = None,
    ) -> None:
        made = Configuration.create(
            selector=selector,
            rollback=rollback,
            engine=engine,
            min_numel=1,
            compress_1d=True,
            allow_dense=False,
        )
        self.pipeline = Pipeline(made, resolve_engine(engine))
        self.pipeline.world_size = 2
        self.state = TensorState(TensorSpec("tensor", (numel,), "float32"), made)
        if residual is not None:
            arrays = self.state.memory.arrays()
            self.state.memory.load({**arrays, "residual": residual})

    def step(self, gradient: Both) -> Any:
        outgoing = self.pipeline.send(self.state, gradient.array, dense=False)
        self.state.commit()
        return outgoing.frame


def peers(residual: np.ndarray, density: float, every: int) -> list[Contestant]:
    made = {
        name: Peer(make(), torch.from_numpy(residual.copy()), density)
        for name, make in PEERS.items()
    }
    return [Contestant(name, _on_tensor(peer), every=every) for name, peer in made.items()]


def _on_tensor(peer: Peer) -> Any:
    return lambda gradient: peer.step(gradient.tensor)


def floor(residual: np.ndarray) -> Contestant:
    """Return the floor: one pass in torch that reads the gradient, and reads and writes the
    residual."""
    tensor = torch.from_numpy(residual.copy())
    return Contestant(FLOOR, lambda gradient: tensor.add_(gradient.tensor))


def receivers(
    gradients: Gradients, density: float, counts: Sequence[int], engine: Any
) -> list[Contestant]:
    """Return contestants that sum the payloads of ``counts`` ranks into a dense vector. The first
    contestant is the floor, which writes a dense vector once."""
    frames = []
    for rank in range(max(counts)):
        ours = Ours(gradients.numel, {"id": "topk", "density": density}, engine=engine)
        frames.append(ours.step(Both.of(gradients.at(rank))))
    written = torch.ones(gradients.numel)
    contestants = [Contestant("gradient.zero_()", lambda _: written.zero_())]
    for count in counts:
        run = _receiver(ours.pipeline, ours.state.spec, frames[:count])
        contestants.append(Contestant(f"{count} payloads", run))
    return contestants


def _receiver(pipeline: Pipeline, spec: TensorSpec, frames: Sequence[Any]) -> Any:
    out = np.ones(spec.numel, np.float32)
    parts = [(slice(0, spec.numel), frame) for frame in frames]
    codec = pipeline.configuration.at_step(0, spec).codec
    given = (spec, codec, parts, out, 1.0 / len(parts))
    return lambda _: write_sum(given, pipeline.kernels)
