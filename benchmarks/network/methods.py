"""The methods, which turn gradients into averaged gradients.

``submit`` gets each gradient that is ready, and ``finish`` waits for the results.

Dense, fp16 and our methods run in Horovod's own optimizer. Exact top-k and DGC are written from
their descriptions, with PyTorch's operations and Horovod's allgather, as in their authors' code.
``tests/network/test_baselines.py`` tests them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import horovod.torch as hvd
import horovod.torch.optimizer as horovod_optimizer
import torch

from benchmarks import _peers
from benchmarks.network.spans import Spans
from examples.spelling import Spelled, SpelledMethod, read_method
from hvd_sparse.collectives import horovod_torch
from hvd_sparse.torch import Compression

Named = Sequence[tuple[str, torch.nn.Parameter]]
HOROVODS = {"dense": hvd.Compression.none, "fp16": hvd.Compression.fp16}


def read(spec: str) -> SpelledMethod:
    """Return one of our methods from a text, for example ``auto`` or ``ldte_bs,codec=block16``."""
    return SpelledMethod("auto") if spec == "auto" else read_method(spec)


def compression(spec: str, named: Named, options: Mapping[str, Any]) -> Any:
    """Return ``compression=`` for a method of Horovod's or ours; only ours get ``options``."""
    if spec in HOROVODS:
        return HOROVODS[spec]
    return read(spec).create(Compression, named, **options)


class ThroughOptimizer:
    """Averages by Horovod's optimizer with a ``compression=``. Its hooks are called directly."""

    def __init__(self, named: Named, compression: Any, spans: Spans, finds: str) -> None:
        self.compression = _Timed(compression, spans, finds)
        optimizer = torch.optim.SGD([parameter for _, parameter in named], lr=0.0)
        self.optimizer = hvd.DistributedOptimizer(
            optimizer, named_parameters=named, compression=self.compression
        )
        self._hooks = [self.optimizer._make_hook(parameter) for _, parameter in named]

    def submit(self, position: int) -> None:
        self._hooks[position]()

    def finish(self) -> None:
        self.optimizer.synchronize()

    @property
    def is_settled(self) -> bool:
        """False during the trial of ``auto``, whose steps differ from the later ones."""
        return getattr(self.compression.inner, "verdict", self) is not None

    def report(self) -> dict[str, Any]:
        inner = self.compression.inner
        if not hasattr(inner, "stats"):
            return {}
        stats = inner.stats()
        verdict = {"verdict": str(inner.verdict)} if hasattr(inner, "verdict") else {}
        return {
            "config": inner.config(),
            **verdict,
            **{key: stats[key] for key in ("density_achieved", "dense_steps", "passes")},
        }


class _Timed:
    def __init__(self, inner: Any, spans: Spans, finds: str) -> None:
        self.inner, self._spans, self._finds = inner, spans, finds

    def compress(self, tensor: torch.Tensor) -> Any:
        with self._spans.phase(self._finds):
            return self.inner.compress(tensor)

    def decompress(self, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        with self._spans.phase("decode"):
            return self.inner.decompress(tensor, ctx)


class Gathered:
    """Sends values and indices by two allgathers; averages densely if ``select`` returns None."""

    is_settled = True
    has_momentum = False
    """Whether the method corrects SGD's momentum by itself."""

    def __init__(self, named: Named, density: float, spans: Spans, label: str) -> None:
        self._parameters = [parameter for _, parameter in named]
        self._names = [f"{label}.{name}" for name, _ in named]
        self._density, self._spans = density, spans
        self._handles: dict[int, tuple[int, ...]] = {}

    def select(self, position: int, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return values and indices to send, and keep the other entries."""
        raise NotImplementedError

    def submit(self, position: int) -> None:
        gradient = self._parameters[position].grad
        with self._spans.phase("select"):
            chosen = self.select(position, gradient.view(-1))
        name = self._names[position]
        if chosen is None:
            self._handles[position] = (hvd.allreduce_async_(gradient, name=name, op=hvd.Average),)
            return
        with self._spans.phase("encode"):
            values, indices = chosen
        self._handles[position] = (
            hvd.allgather_async(values, name=f"{name}.t0"),
            hvd.allgather_async(indices, name=f"{name}.t1"),
        )

    def finish(self) -> None:
        for position, handles in self._handles.items():
            with self._spans.phase("send"):
                results = [hvd.synchronize(handle) for handle in handles]
            if len(results) == 2:
                with self._spans.phase("decode"):
                    values, indices = results
                    gradient = torch.zeros(self._parameters[position].numel())
                    gradient.index_put_((indices,), values, accumulate=True).mul_(1.0 / hvd.size())
                    self._parameters[position].grad.set_(
                        gradient.view(self._parameters[position].shape)
                    )
        self._handles.clear()

    def report(self) -> dict[str, Any]:
        return {}


class TopK(Gathered):
    """Exact top-k with error feedback; sends float32 values and int64 indices (xu2021grace)."""

    def __init__(self, named: Named, density: float, spans: Spans, label: str) -> None:
        super().__init__(named, density, spans, label)
        self.residuals = [torch.zeros(parameter.numel()) for parameter in self._parameters]

    def select(self, position: int, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        accumulated = self.residuals[position].add_(flat)
        indices = _peers.TopK().choose(accumulated, max(1, int(flat.numel() * self._density)))
        values = accumulated[indices]
        accumulated[indices] = 0.0
        return values, indices


class Dgc(Gathered):
    """Deep gradient compression after its warm-up, as in its authors' code (lin2018dgc)."""

    has_momentum = True
    momentum = 0.9

    def __init__(self, named: Named, density: float, spans: Spans, label: str) -> None:
        super().__init__(named, density, spans, label)
        sizes = [parameter.numel() if parameter.dim() > 1 else 0 for parameter in self._parameters]
        self.momenta = [torch.zeros(size) for size in sizes]
        self.velocities = [torch.zeros(size) for size in sizes]

    def select(self, position: int, flat: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self._parameters[position].dim() == 1:
            return None
        momentum, velocity = self.momenta[position], self.velocities[position]
        momentum.mul_(self.momentum).add_(flat)
        velocity.add_(momentum)
        count = math.ceil(velocity.numel() * self._density)
        indices = _peers.DgcSampled().choose(velocity, count)
        values = velocity[indices]
        velocity[indices] = 0.0
        momentum[indices] = 0.0
        return values, indices


PEERS: dict[str, type[Gathered]] = {"topk": TopK, "dgc": Dgc}


def create(spec: str, named: Named, density: Spelled, spans: Spans) -> Gathered | ThroughOptimizer:
    labelled = [(f"{spec}.{name}", parameter) for name, parameter in named]
    if spec in PEERS:
        assert isinstance(density, float)  # as the command has checked
        return PEERS[spec](named, density, spans, spec)
    made = compression(spec, labelled, {"density": density, "name": spec})
    return ThroughOptimizer(labelled, made, spans, "encode" if spec in HOROVODS else "select")


def watch(spans: Spans, codecs: Sequence[type]) -> None:
    """Count the time of all calls that wait for Horovod or encode entries."""
    spans.wrap(horovod_optimizer, "synchronize", "send")
    spans.wrap(horovod_torch._HorovodPending, "wait", "send")
    for codec in codecs:
        spans.wrap(codec, "encode", "encode")
