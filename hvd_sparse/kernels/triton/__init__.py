"""Engine ``triton``: a step's passes compiled for GPUs; other kernels are torch's operations.

Contract: ``kernels.contract``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
import triton

from hvd_sparse.kernels.contract import Aim, Brought, Kernels, Sums, Surplus, Taking
from hvd_sparse.kernels.torch import TorchKernels
from hvd_sparse.kernels.torch.coming import Answers, Pass, Sum, joined
from hvd_sparse.kernels.torch.passes import STATISTICS, brought_in, pending
from hvd_sparse.kernels.torch.vector import Vector, tensor_of
from hvd_sparse.kernels.triton.launches import MOMENTS, assemble, take
from hvd_sparse.types import Selection

Kind = tuple[torch.device, torch.dtype]
IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Whether Triton's interpreter replaces the GPU; it accepts vectors on the CPU."""
BLOCK = 4096
"""Entries per program, 16 per thread."""


def has_gpu() -> bool:
    return IS_INTERPRETED or bool(torch.cuda.is_available())


class TritonKernels(TorchKernels):
    """Kernels whose passes read and write gradient, residual and result once each."""

    def __init__(self, host: Kernels, block: int = BLOCK) -> None:
        super().__init__(host)
        self._block = block

    def begin(self, passes: Sequence[Pass]) -> Answers:
        """Start the passes of a bucket: three launches, and torch's for further statistics."""
        out = passes[0].out
        if not self._runs_on(out) or not any(one.out.numel() for one in passes):
            return super().begin(passes)
        beside = _brought_beside(passes, MOMENTS)  # first, because a pass may overwrite its input
        return _with_brought(take(passes, self._block), beside)

    def assemble(self, out: Vector, parts: Sequence[Selection], factor: float = 1.0) -> None:
        self.assemble_together([(cast(np.ndarray, out), parts, factor)])

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        together: dict[Kind, list[Sum]] = {}
        for out, parts, factor in sums:
            tensor = tensor_of(out)
            if any(part.count for part in parts) and self._runs_on(tensor):
                kind = tensor.device, tensor.dtype
                together.setdefault(kind, []).append(Sum(tensor, parts, factor))
            else:
                super().assemble(out, parts, factor)
        beside: dict[Kind, list[tuple[torch.Tensor, Selection]]] = {kind: [] for kind in together}
        for vector, entries in surplus:
            tensor = tensor_of(vector)
            if (tensor.device, tensor.dtype) in beside:
                beside[tensor.device, tensor.dtype].append((tensor, entries))
            else:
                self.restore(vector, entries)
        for kind, each in together.items():
            assemble(each, beside[kind], self._block)

    @staticmethod
    def _runs_on(x: torch.Tensor) -> bool:
        return IS_INTERPRETED or x.device.type != "cpu"


def _brought_beside(passes: Sequence[Pass], own: str) -> Answers | None:
    """Return the ``Brought`` statistics of passes that have not started, without those in ``own``;
    None if no pass asks for others."""
    asked = [_asked(one.aim, own) for one in passes]
    if not any(asked):
        return None
    numbers = [
        number
        for one, names in zip(passes, asked)
        if names
        for number in pending(one.residual + one.gradient, names)
    ]

    def read_all(words: np.ndarray) -> list[Brought]:
        rest, found = words.view(np.float64).tolist(), []
        for one, names in zip(passes, asked):
            count = sum(STATISTICS[name].size for name in names)
            found.append(brought_in(rest[:count], names, one.out.numel()))
            rest = rest[count:]
        return found

    return Answers(torch.stack(numbers).view(torch.int32), read_all)


def _with_brought(answers: Answers, beside: Answers | None) -> Answers:
    if beside is None:
        return answers
    both = joined([answers, beside])

    def read_both(words: np.ndarray) -> list[object]:
        found = list(both.read(words))
        half = len(found) // 2
        return [_joined(one, more) for one, more in zip(found[:half], found[half:])]

    return Answers(both.words, read_both)


def _asked(aim: Aim | None, own: str) -> tuple[str, ...]:
    return () if aim is None else tuple(name for name in aim.brings if name != own)


def _joined(one: object, more: object) -> object:
    if not isinstance(one, Taking) or not isinstance(more, Brought):
        return one
    moments = one.brought.moments
    return one._replace(brought=more if moments is None else more._replace(moments=moments))
