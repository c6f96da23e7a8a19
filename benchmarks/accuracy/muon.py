"""Muon for the matrices of a network's blocks, and Adam for all other parameters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

MOMENTUM = 0.95


def groups_of(network: nn.Module, rate: float, decay: float) -> list[dict[str, Any]]:
    """Return the groups of parameters: matrices in "blocks" have twice the learning rate."""
    matrices, others = [], []
    for name, parameter in network.named_parameters():
        is_matrix = parameter.dim() == 2 and name.startswith("blocks")
        (matrices if is_matrix else others).append(parameter)
    muon = {"params": matrices, "use_muon": True, "lr": 2 * rate, "momentum": MOMENTUM}
    adam = {"params": others, "use_muon": False, "lr": rate, "betas": (0.9, 0.999), "eps": 1e-8}
    return [{**group, "weight_decay": decay} for group in (muon, adam)]


class SingleDeviceMuonWithAuxAdam(torch.optim.Optimizer):
    """Muon for groups with ``use_muon``, and Adam for others. The names of the class and its
    options are those by which the package recognizes Muon."""

    COEFFICIENTS, ITERATIONS = (3.4445, -4.7750, 2.0315), 5

    def __init__(self, param_groups: Any) -> None:
        super().__init__(param_groups, {"weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            direction = self._muon if group["use_muon"] else self._adam
            for parameter in group["params"]:
                if parameter.grad is not None:
                    moved = direction(parameter.grad, self.state[parameter], group)
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    parameter.sub_(group["lr"] * moved)
        return loss

    def _muon(self, gradient: torch.Tensor, state: Any, group: dict[str, Any]) -> torch.Tensor:
        mean = state.setdefault("momentum_buffer", torch.zeros_like(gradient))
        mean.lerp_(gradient, 1 - group["momentum"])
        update = self._orthogonal(gradient.lerp(mean, group["momentum"]))
        return update * math.sqrt(max(1, gradient.shape[0] / gradient.shape[1]))

    def _orthogonal(self, matrix: torch.Tensor) -> torch.Tensor:
        """Return the matrix with singular values of about 1, by Newton and Schulz's iteration."""
        is_tall = matrix.shape[0] > matrix.shape[1]
        x = matrix.T if is_tall else matrix
        x = x / (x.norm() + 1e-7)
        a, b, c = self.COEFFICIENTS
        for _ in range(self.ITERATIONS):
            square = x @ x.T
            x = a * x + (b * square + c * square @ square) @ x
        return x.T if is_tall else x

    def _adam(self, gradient: torch.Tensor, state: Any, group: dict[str, Any]) -> torch.Tensor:
        mean = state.setdefault("exp_avg", torch.zeros_like(gradient))
        square = state.setdefault("exp_avg_sq", torch.zeros_like(gradient))
        state["step"] = step = state.get("step", 0) + 1
        (beta1, beta2), epsilon = group["betas"], group["eps"]
        mean.lerp_(gradient, 1 - beta1)
        square.lerp_(gradient.square(), 1 - beta2)
        return mean / (1 - beta1**step) / ((square / (1 - beta2**step)).sqrt() + epsilon)
