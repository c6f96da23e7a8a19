"""Engine ``triton``: a step's passes compiled for GPUs; other kernels are torch's operations.

Contract: ``kernels.contract``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
import triton

from hvd_sparse.kernels.contract import Aim, Kernels, Sums, Surplus
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
        numbers = [  # first, because a pass may overwrite its input
            number
            for one in passes
            if _asked(one.aim)
            for number in pending(one.residual + one.gradient, _asked(one.aim))
        ]
        taken = take(passes, self._block)
        if not numbers:
            return taken
        words = torch.stack(numbers).view(torch.int32)
        both = joined([taken, Answers(words, lambda read: read.view(np.float64).tolist())])
        return Answers(both.words, lambda read: _with_brought(both.read(read), passes))

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


def _asked(aim: Aim | None) -> tuple[str, ...]:
    """Return the statistics that an aim asks for, without those that the launches compute."""
    return () if aim is None else tuple(name for name in aim.brings if name != MOMENTS)


def _with_brought(found: Sequence[Any], passes: Sequence[Pass]) -> list[object]:
    """Return the passes' results with the statistics, whose numbers follow them."""
    answers, rest = list(found[: len(passes)]), found[len(passes) :]
    for i, one in enumerate(passes):
        names = _asked(one.aim)
        if names:
            brought = brought_in(rest, names, one.out.numel())
            brought = brought._replace(moments=answers[i].brought.moments)
            answers[i] = answers[i]._replace(brought=brought)
            rest = rest[sum(STATISTICS[name].size for name in names) :]
    return answers
