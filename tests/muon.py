"""Muon with the class names, options and formulas of its reference implementation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


def orthogonalized(x: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Return each matrix after Newton and Schulz's iteration, in its own dtype."""
    matrices = x.flatten(1) if x.ndim == 4 else x
    rows, columns = matrices.shape[-2:]
    if rows > columns:
        return orthogonalized(matrices.mT, steps).mT.reshape(x.shape)
    y = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = y @ y.mT
        y = 3.4445 * y - 4.7750 * square @ y + 2.0315 * square @ square @ y
    return y.reshape(x.shape)


class SingleDeviceMuon(torch.optim.Optimizer):
    def __init__(
        self, params: Any, lr: float = 0.02, weight_decay: float = 0, momentum: float = 0.95
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for parameter in group["params"]:
                move_by_muon(parameter, self.state[parameter], group)
        return loss


class SingleDeviceMuonWithAuxAdam(torch.optim.Optimizer):
    def __init__(self, param_groups: Iterable[dict[str, Any]]) -> None:
        groups = list(param_groups)
        for group in groups:
            if group["use_muon"]:
                group.setdefault("lr", 0.02), group.setdefault("momentum", 0.95)
            else:
                group.setdefault("lr", 3e-4), group.setdefault("betas", (0.9, 0.95))
                group.setdefault("eps", 1e-10)
            group.setdefault("weight_decay", 0)
            usual = {"momentum"} if group["use_muon"] else {"betas", "eps"}
            assert set(group) == {"params", "lr", "weight_decay", "use_muon", *usual}
        super().__init__(groups, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            move = move_by_muon if group["use_muon"] else move_by_adam
            for parameter in group["params"]:
                move(parameter, self.state[parameter], group)
        return loss


def move_by_muon(parameter: torch.Tensor, state: Any, group: dict[str, Any]) -> None:
    if parameter.grad is None:
        return
    if not state:
        state["momentum_buffer"] = torch.zeros_like(parameter)
    momentum, buffer = group["momentum"], state["momentum_buffer"]
    buffer.lerp_(parameter.grad, 1 - momentum)
    update = orthogonalized(parameter.grad.lerp(buffer, momentum))
    update = update * max(1, parameter.size(-2) / parameter.size(-1)) ** 0.5
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.add_(update, alpha=-group["lr"])


def move_by_adam(parameter: torch.Tensor, state: Any, group: dict[str, Any]) -> None:
    if parameter.grad is None:
        return
    if not state:
        state.update(
            exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter), step=0
        )
    state["step"] += 1
    beta1, beta2 = group["betas"]
    state["exp_avg"].lerp_(parameter.grad, 1 - beta1)
    state["exp_avg_sq"].lerp_(parameter.grad.square(), 1 - beta2)
    mean = state["exp_avg"] / (1 - beta1 ** state["step"])
    square = state["exp_avg_sq"] / (1 - beta2 ** state["step"])
    parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.add_(mean / (square.sqrt() + group["eps"]), alpha=-group["lr"])


def paired(parameters: Iterable[torch.Tensor], **of_matrices: Any) -> SingleDeviceMuonWithAuxAdam:
    both: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for parameter in parameters:
        both[parameter.ndim > 1].append(parameter)
    options = [{"lr": 0.01, "weight_decay": 0.1}, {"lr": 0.02, **of_matrices}]
    return SingleDeviceMuonWithAuxAdam(
        [
            {"params": own, "use_muon": bool(use), **options[use]}
            for use, own in enumerate(both)
            if own
        ]
    )
