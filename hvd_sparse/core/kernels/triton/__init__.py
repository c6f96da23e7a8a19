"""Kernels compiled by Triton for GPUs: a step's passes; all others are torch's operations.

Contracts: ``core.kernels.contract``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton

from hvd_sparse.core.kernels.contract import Aim, Kernels, Taking
from hvd_sparse.core.kernels.torch import TorchKernels
from hvd_sparse.core.kernels.torch.coming import Coming
from hvd_sparse.core.kernels.torch.vector import Vector, fetch, tensor_of
from hvd_sparse.core.kernels.triton.launches import Member, assemble, take
from hvd_sparse.types import Selection

IS_INTERPRETED = bool(triton.knobs.runtime.interpret)
"""Triton's interpreter stands in for the GPU, and takes vectors of the CPU."""
BLOCK = 4096
"""Entries of a program: 16 a thread."""


def has_gpu() -> bool:
    """Tell whether there is something here that Triton compiles for."""
    return IS_INTERPRETED or bool(torch.cuda.is_available())


class TritonKernels(TorchKernels):
    """Kernels whose passes over gradient, residual and result go over each of them once.

    Parameters
    ----------
    host : kernels for what lies on the host anyway
    block : entries of a program, a power of two
    """

    def __init__(self, host: Kernels, block: int = BLOCK) -> None:
        super().__init__(host)
        self._block = block

    def begin_accumulate_and_take(
        self, gradient: Vector, residual: Vector, out: Vector, aim: Aim
    ) -> Coming[Taking]:
        if not out.size or not self._runs_on(out):
            return super().begin_accumulate_and_take(gradient, residual, out, aim)
        member = Member(tensor_of(gradient), tensor_of(residual), tensor_of(out), aim)
        words = take([member], self._block).words.view(torch.int32)
        return Coming(words, lambda fetched: _takings(fetched.view(np.uint8), [member])[0])

    def accumulate_and_take_all(
        self, members: Sequence[tuple[Vector, Vector, Vector, Aim]]
    ) -> list[Taking]:
        """Do ``accumulate_and_take`` for all tensors of a bucket: four launches and one wait.

        Parameters
        ----------
        members : gradient, residual, out and aim; none empty, all of one dtype and device
        """
        given = [
            Member(tensor_of(gradient), tensor_of(residual), tensor_of(out), aim)
            for gradient, residual, out, aim in members
        ]
        return _takings(fetch(take(given, self._block).words), given)

    def assemble(self, out: Vector, parts: Sequence[Selection], factor: float = 1.0) -> None:
        if not any(part.count for part in parts) or not self._runs_on(out):
            super().assemble(out, parts, factor)
        else:
            assemble(tensor_of(out), parts, factor, self._block)

    @staticmethod
    def _runs_on(x: Vector) -> bool:
        """Tell whether a vector lies where Triton's code runs; lists of the host do not."""
        return IS_INTERPRETED or bool(tensor_of(x).device.type != "cpu")


def _takings(words: np.ndarray, members: Sequence[Member]) -> list[Taking]:
    """Return what was taken from all members, once its words are on the host, uint8."""
    dtype = np.float64 if members[0].out.dtype == torch.float64 else np.float32
    head = words[: 24 * len(members)].view(np.float64).reshape(-1, 3)
    room = sum(member.room for member in members)
    values = words[24 * len(members) : words.size - 4 * room].view(dtype)
    places = words[words.size - 4 * room :].view(np.uint32)
    results, start = [], 0
    for member, (count, abs_sum, nonfinite) in zip(members, head.tolist()):
        selection = None
        if count <= member.aim.capacity:
            here = slice(start, start + int(count))
            selection = Selection(places[here], values[here], member.out.numel())
        results.append(Taking(abs_sum, int(nonfinite), selection))
        start += member.room
    return results
