"""Random gradients of given shapes, and a backward pass that returns them at hardly any cost.

The gradients are parts of one long vector, which gets new values before a step. A function of
autograd returns them for the parameters, from the last to the first, as the layers of a model
would.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._gradients import Gradients, fill, padded
from benchmarks.step.models import Shape

POOL = 1 << 22
ODD = 12_345
"""Number of entries by which the vector of residual values is shorter than that of gradients, so
that no two entries get the same sequence of values."""


class Replay:
    """Parameters of one rank, and their gradients."""

    def __init__(self, shapes: Sequence[Shape], seed: int) -> None:
        self.parameters = [nn.Parameter(torch.zeros(shape)) for shape in shapes]
        self._places: list[slice] = []
        numel = 0
        for shape in shapes:
            self._places.append(slice(numel, numel + math.prod(shape)))
            numel += padded(math.prod(shape))
        self._shapes = list(shapes)
        self._vector = torch.zeros(numel)
        drawn = Gradients.draw(min(POOL, max(numel, 2 * ODD)), seed)
        self._pool, self._drawn = drawn.arrays[0], drawn

    @cached_property
    def _floor(self) -> list[torch.Tensor]:
        return [torch.zeros(math.prod(shape)) for shape in self._shapes]

    @property
    def nbytes(self) -> int:
        return int(4 * sum(parameter.numel() for parameter in self.parameters))

    def draw(self, step: int) -> None:
        fill(self._vector.numpy(), self._pool, step)

    def draw_steady(self, density: float, factor: float) -> None:
        """Set the gradients to values like those that error feedback leaves after many steps."""
        walk = self._drawn.steady_residual(density, seed=1)[: self._drawn.numel - ODD]
        fill(self._vector.numpy(), walk * np.float32(factor), 0)

    def loss(self) -> torch.Tensor:
        """Return a scalar for ``backward``. The parameters must not have gradients yet."""
        passed = torch.ones((), requires_grad=True)
        for position, parameter in enumerate(self.parameters):
            passed = _Layer.apply(passed, parameter, self, position)
        return passed

    def module(self) -> nn.Module:
        """Return a module for DistributedDataParallel, which returns ``loss()``."""
        module = nn.Module()
        module.weights, module.forward = nn.ParameterList(self.parameters), self.loss
        return module

    def gradient(self, position: int) -> torch.Tensor:
        return self._vector[self._places[position]].view(self._shapes[position])

    def add_to_residuals(self) -> None:
        """Do the work of the floor: ``residual.add_(gradient)`` for every tensor."""
        for residual, place in zip(self._floor, self._places):
            residual.add_(self._vector[place])

    def check_handed_over(self, position: int) -> None:
        """Raise AssertionError if autograd has copied a gradient; the copy would be measured."""
        given = self.parameters[position].grad
        if given is None or given.data_ptr() != self.gradient(position).data_ptr():
            raise AssertionError(f"autograd copied the gradient of parameter {position}")


class _Layer(torch.autograd.Function):
    """A layer whose backward pass returns a prepared gradient of its parameter."""

    @staticmethod
    def forward(
        ctx: Any, passed: torch.Tensor, parameter: torch.Tensor, replay: Replay, position: int
    ) -> torch.Tensor:
        ctx.replay, ctx.position = replay, position
        return passed.clone()

    @staticmethod
    def backward(ctx: Any, passed: torch.Tensor) -> Any:
        return passed, ctx.replay.gradient(ctx.position), None, None
