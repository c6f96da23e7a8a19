"""What is made of that which arrives, before it is multiplied with the learning rate."""

from __future__ import annotations

import torch

from benchmarks.ways.worker_rules import BETA1, BETA2, EPSILON, MOMENTUM


class Plain:
    """Apply it as it is."""

    def __init__(self, numel: int) -> None:
        self.numel = numel

    def apply(self, arrived: torch.Tensor, step: int) -> torch.Tensor:
        """Return the direction of a step, from 1."""
        return arrived


class Momentum(Plain):
    """SGD's momentum, of what arrives."""

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.velocity = torch.zeros(numel)

    def apply(self, arrived: torch.Tensor, step: int) -> torch.Tensor:
        return self.velocity.mul_(MOMENTUM).add_(arrived)


class Adam(Plain):
    """Adam, of what arrives."""

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.mean, self.square = torch.zeros(numel), torch.zeros(numel)

    def apply(self, arrived: torch.Tensor, step: int) -> torch.Tensor:
        self.mean.lerp_(arrived, 1 - BETA1)
        self.square.mul_(BETA2).addcmul_(arrived, arrived, value=1 - BETA2)
        root = (self.square / (1 - BETA2**step)).sqrt()
        return self.mean / (1 - BETA1**step) / (root + EPSILON)


class AdamOfSquares(Adam):
    """Adam without a mean of its own: what arrives is one already."""

    def apply(self, arrived: torch.Tensor, step: int) -> torch.Tensor:
        self.square.mul_(BETA2).addcmul_(arrived, arrived, value=1 - BETA2)
        return arrived / ((self.square / (1 - BETA2**step)).sqrt() + EPSILON)


class CorrectedByDensity(Adam):
    """Adam, whose steps are longer by the root of what part of the entries arrive: rare and large
    ones have second moments that are too large by that part."""

    def apply(self, arrived: torch.Tensor, step: int) -> torch.Tensor:
        part = max(1, int(torch.count_nonzero(arrived))) / self.numel
        return super().apply(arrived, step) / part**0.5


class AwareOfAge(Plain):
    """Adam that takes an entry which comes after t steps for t steps of its mean."""

    def __init__(self, numel: int) -> None:
        super().__init__(numel)
        self.mean, self.square = torch.zeros(numel), torch.zeros(numel)
        self.last = torch.zeros(numel)

    def apply(self, arrived: torch.Tensor, step: int) -> torch.Tensor:
        here = arrived != 0
        age = (step - self.last).clamp_(min=1.0)
        typical = arrived / age
        self.mean = torch.where(here, typical + (self.mean - typical) * BETA1**age, self.mean)
        squared = typical.square()
        moved = squared + (self.square - squared) * BETA2**age
        self.square = torch.where(here, moved, self.square)
        self.last = torch.where(here, float(step), self.last)
        root = (self.square / (1 - BETA2**step)).sqrt()
        direction = age * self.mean / (1 - BETA1**step) / (root + EPSILON)
        return torch.where(here, direction, 0.0)
