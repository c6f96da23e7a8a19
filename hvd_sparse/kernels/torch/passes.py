"""A step's passes in torch operations: what moves a memory's vectors on by a gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch

from hvd_sparse.kernels.adam import AdamStep
from hvd_sparse.kernels.contract import Aim, Moments, Taking
from hvd_sparse.kernels.newton_schulz import NewtonSchulz, iterated
from hvd_sparse.kernels.torch import adam
from hvd_sparse.kernels.torch.accumulating import accumulated
from hvd_sparse.kernels.torch.coming import Answers, Coming, Pass, joined
from hvd_sparse.kernels.torch.taking import rounded
from hvd_sparse.kernels.torch.vector import DeviceVector, Vector, tensor_of


class TorchPasses:
    """The passes of ``kernels.contract``; those that are answered may come with others'."""

    def accumulate(self, gradient: Vector, residual: Vector, out: Vector) -> Moments:
        return self.later_accumulate(gradient, residual, out).result()

    def later_accumulate(self, gradient: Vector, residual: Vector, out: Vector) -> Coming[Moments]:
        """Do as ``accumulate``, with the other passes of a bucket."""
        one = Pass(tensor_of(gradient), tensor_of(residual), tensor_of(out), None)
        return Coming[Moments](one, self.begin)

    def accumulate_and_take(
        self, gradient: Vector, residual: Vector, out: Vector, aim: Aim
    ) -> Taking:
        return self.later_accumulate_and_take(gradient, residual, out, aim).result()

    def later_accumulate_and_take(
        self, gradient: Vector, residual: Vector, out: Vector, aim: Aim
    ) -> Coming[Taking]:
        """Do as ``accumulate_and_take``, with the other passes of a bucket."""
        one = Pass(tensor_of(gradient), tensor_of(residual), tensor_of(out), aim)
        return Coming[Taking](one, self.begin)

    def begin(self, passes: Sequence[Pass]) -> Answers:
        """Give a device the passes of a bucket's tensors, and wait for nothing.

        Parameters
        ----------
        passes : of one dtype, on one device

        Returns
        -------
        Answers
            ``Moments`` or ``Taking`` for every pass, in one piece of the device's memory.
        """
        return joined([accumulated(one) for one in passes])

    def push_momentum(
        self, gradient: Vector, residual: Vector, out: Vector, momentum: float
    ) -> None:
        result = tensor_of(out)
        factor = rounded(result, momentum)
        torch.mul(tensor_of(residual), factor, out=result).add_(tensor_of(gradient))

    def push_adam(
        self,
        gradient: Vector,
        mean: Vector,
        square: Vector,
        out_mean: Vector,
        out_square: Vector,
        out: Vector,
        step: AdamStep,
    ) -> None:
        vectors = gradient, mean, square, out_mean, out_square, out
        adam.push([tensor_of(vector) for vector in vectors], step)

    def orthogonalized(self, x: Vector, step: NewtonSchulz) -> np.ndarray:
        given, axes = tensor_of(x).view(step.shape), (-2, -1)
        largest = given.abs().amax(axes, keepdim=True)
        matrices = given / torch.where(largest == 0, 1.0, largest)
        norm = torch.linalg.vector_norm(matrices, dim=axes, keepdim=True)
        matrices = matrices / (norm + step.epsilon / largest)
        if given.dtype == torch.float32 and given.device.type != "cpu":
            matrices = matrices.bfloat16()  # as torch.optim.Muon does
        result = iterated(matrices, step).to(given.dtype).contiguous().view(-1)
        found = DeviceVector(result) if isinstance(x, DeviceVector) else result.numpy()
        return cast(np.ndarray, found)

    def push_momentum_and_take(
        self,
        gradient: Vector,
        velocity: Vector,
        out_velocity: Vector,
        residual: Vector,
        out: Vector,
        momentum: float,
        nesterov: bool,
        aim: Aim,
    ) -> Taking:
        vectors = gradient, velocity, out_velocity, residual, out
        return self.later_push_momentum_and_take(*vectors, momentum, nesterov, aim).result()

    def later_push_momentum_and_take(
        self,
        gradient: Vector,
        velocity: Vector,
        out_velocity: Vector,
        residual: Vector,
        out: Vector,
        momentum: float,
        nesterov: bool,
        aim: Aim,
    ) -> Coming[Taking]:
        """Push the velocity now, and take with the other passes of a bucket."""
        self.push_momentum(gradient, velocity, out_velocity, momentum)
        direction = tensor_of(out_velocity)
        if nesterov:
            direction = (direction * rounded(direction, momentum)).add_(tensor_of(gradient))
        one = Pass(direction, tensor_of(residual), tensor_of(out), aim)
        return Coming[Taking](one, self.begin)

    def push_adam_and_take(
        self,
        gradient: Vector,
        mean: Vector,
        square: Vector,
        out_mean: Vector,
        out_square: Vector,
        residual: Vector,
        out: Vector,
        step: AdamStep,
        aim: Aim,
    ) -> Taking:
        vectors = gradient, mean, square, out_mean, out_square, residual, out
        return self.later_push_adam_and_take(*vectors, step, aim).result()

    def later_push_adam_and_take(
        self,
        gradient: Vector,
        mean: Vector,
        square: Vector,
        out_mean: Vector,
        out_square: Vector,
        residual: Vector,
        out: Vector,
        step: AdamStep,
        aim: Aim,
    ) -> Coming[Taking]:
        """Move the moments now, and take with the other passes of a bucket."""
        direction = DeviceVector(torch.empty_like(tensor_of(out)))
        self.push_adam(gradient, mean, square, out_mean, out_square, direction, step)
        return self.later_accumulate_and_take(direction, residual, out, aim)
