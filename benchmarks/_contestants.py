"""Who takes part in ``bench select``: the package, the peers, the floor, and receiving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks._gradients import ALIGNMENT, Gradients
from benchmarks._interleaved_timing import Contestant
from benchmarks._peers import PEERS, Peer
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.selectors.contract import Found
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import TensorSpec

FLOOR = "residual.add_(gradient)"
SELECTORS = ("ldte_bs", "topk")


@dataclass(frozen=True)
class Round:
    """A round's gradient, tensor by tensor, for numpy and for torch: the same memory."""

    flat: list[np.ndarray]
    tensors: list[torch.Tensor]

    @classmethod
    def cut(cls, vector: np.ndarray, shapes: Sequence[tuple[int, ...]]) -> Round:
        """Return views of a vector's parts, one behind the other, each at an address that an
        allocator might have given."""
        flat, start = [], 0
        for shape in shapes:
            size = int(np.prod(shape))
            flat.append(vector[start : start + size])
            start += padded(size)
        return cls(flat, [torch.from_numpy(part) for part in flat])


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Ours:
    """Tensors through the package's own pipeline: gradient to encoded payload and settled residual,
    steps on end.

    Parameters
    ----------
    shapes : of the tensors
    selector, rollback, parts : of the configuration
    engine : id, mapping with options, or None for the best that is installed
    residuals : what to start from; None for zeros
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, ...]],
        selector: Any,
        *,
        rollback: bool = False,
        engine: Any = None,
        residuals: list[np.ndarray] | None = None,
        **parts: Any,
    ) -> None:
        self.configuration = Configuration.create(
            selector=selector,
            rollback=rollback,
            engine=engine,
            min_numel=1,
            compress_1d=True,
            allow_dense=False,
            **parts,
        )
        self.pipeline = Pipeline(self.configuration, resolve_engine(engine))
        specs = [TensorSpec(f"tensor.{i}", shape, "float32") for i, shape in enumerate(shapes)]
        self.states = [TensorState(spec, self.configuration) for spec in specs]
        self.frames: list[np.ndarray] = []
        self.found: list[Found] = []
        for state, residual in zip(self.states, residuals or []):
            state.memory.load({**state.memory.arrays(), "residual": residual})

    def step(self, gradients: Round) -> None:
        self.frames, self.found = [], []
        for state, gradient in zip(self.states, gradients.flat):
            outgoing = self.pipeline.send(state, gradient, 0, 2, dense=False)
            state.commit()
            self.frames.append(outgoing.frame)
            self.found.append(outgoing.found)


def peers(residual: np.ndarray, density: float, every: int) -> list[Contestant]:
    """Return all peers, each with a copy of the residual."""
    made = {
        name: Peer(make(), torch.from_numpy(residual.copy()), density)
        for name, make in PEERS.items()
    }
    return [Contestant(name, _on_tensor(peer), every=every) for name, peer in made.items()]


def _on_tensor(peer: Peer) -> Any:
    return lambda gradients: peer.step(gradients.tensors[0])


def floor(residual: np.ndarray) -> Contestant:
    """One pass: read the gradient, read and write the residual, in torch."""
    tensor = torch.from_numpy(residual.copy())
    return Contestant(FLOOR, lambda gradients: tensor.add_(gradients.tensors[0]))


def frames_of_ranks(
    gradients: Gradients, density: float, ranks: int, engine: Any
) -> tuple[Pipeline, list[Any]]:
    """A pipeline and what so many ranks send it in one step, exact top-k of gradients of their
    own."""
    frames = []
    for rank in range(ranks):
        ours = Ours([(gradients.numel,)], {"id": "topk", "density": density}, engine=engine)
        ours.step(Round([gradients.at(rank)], []))
        frames += ours.frames
    return ours.pipeline, frames


def receivers(
    pipeline: Pipeline, numel: int, frames: list[Any], counts: Sequence[int]
) -> list[Contestant]:
    """The dense sum of the payloads of so many ranks; the floor writes the dense gradient once."""
    spec = TensorSpec("tensor", (numel,), "float32")
    written = torch.ones(numel)
    contestants = [Contestant("gradient.zero_()", lambda _: written.zero_())]
    for count in counts:
        contestants.append(
            Contestant(f"{count} payloads", _receiver(pipeline, spec, frames[:count]))
        )
    return contestants


def _receiver(pipeline: Pipeline, spec: TensorSpec, frames: list[Any]) -> Any:
    out = np.ones(spec.numel, np.float32)

    parts = [(slice(0, spec.numel), frame) for frame in frames]
    return lambda _: pipeline.receive(spec, parts, 1.0 / len(parts), out, 0)
