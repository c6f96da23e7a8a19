"""Small worlds of N ranks in this process, each with a numpy session."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hvd_sparse.collectives.local import LocalCollective, LocalWorld
from hvd_sparse.configuration import Configuration
from hvd_sparse.step.session import Session
from hvd_sparse.types import TensorSpec

TIMEOUT_S = 600.0
"""Time limit in seconds, which only a hang reaches."""
Gradients = dict[str, np.ndarray]


def configure(selector: Any = "topk", density: Any = 0.25, **options: Any) -> Configuration:
    """Return a configuration with a selector, given as an object or by its id and density."""
    everything = {"min_numel": 1, "compress_1d": True, "allow_dense": False, "timeout_s": TIMEOUT_S}
    if isinstance(selector, str):
        selector = {"id": selector, "density": density}
    return Configuration.create(selector=selector, **{**everything, **options})


def tensors(*shapes: tuple[int, ...], dtype: str = "float32") -> list[TensorSpec]:
    return [TensorSpec(f"t{i}", shape, dtype) for i, shape in enumerate(shapes)]


def integers(specs: Sequence[TensorSpec], *seed: int) -> Gradients:
    rng = np.random.default_rng(seed)
    return {spec.key: rng.integers(-9, 10, spec.shape).astype(spec.dtype) for spec in specs}


def normals(specs: Sequence[TensorSpec], *seed: int) -> Gradients:
    rng = np.random.default_rng(seed)
    return {spec.key: np.asarray(rng.normal(size=spec.shape), spec.dtype) for spec in specs}


def run(world_size: int, function: Callable[[LocalCollective], Any]) -> list[Any]:
    return LocalWorld(world_size, TIMEOUT_S).run(function)


class Around:
    """Wraps a collective. Each call is passed to ``submit(kind, arguments, call)``."""

    def __init__(
        self, collective: Any, submit: Callable[[str, tuple[Any, ...], Callable[[], Any]], Any]
    ) -> None:
        self._collective, self._submit = collective, submit

    def __getattr__(self, kind: str) -> Any:
        own = getattr(self._collective, kind)
        if kind not in ("allgather", "allreduce", "alltoall"):
            return own
        return lambda *arguments: self._submit(kind, arguments, lambda: own(*arguments))


def residuals(session: Session) -> dict[str, np.ndarray]:
    """Return a rank's residuals after its last good step, for every tensor that had a step: flat,
    with zeros where another rank of a node keeps the residual."""
    kept = {}
    for position, state in session.step.transactions.settle_all().items():
        spec = session.step.specs[position]
        kept[spec.key] = np.zeros(spec.numel, spec.accumulator)
        kept[spec.key][state.part] = state.memory.arrays()["residual"]
    return kept


def snapshot(session: Session) -> dict[str, tuple[int, float | None, bytes]]:
    states = session.step.transactions.settle_all()
    return {
        session.step.specs[i].key: (s.steps, s.threshold, s.memory.arrays()["residual"].tobytes())
        for i, s in states.items()
    }


def bits_of(arrays: Mapping[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in arrays.items()}


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two arrays have the same bits; for example, -0.0 and +0.0 differ."""
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
