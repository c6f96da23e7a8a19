"""Ranks that wait for each other elsewhere, while some of them rest at their last gradient."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from _common import Cases
from _torch_cases import digest_of, give_gradients
from _torch_fault_tools import compress, last_rank

STEPS = 4
cases = Cases()
others = Cases()


def _model(seed: int) -> dict[str, torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.nn.Parameter(torch.randn(8, 9, generator=generator))
        for name in ("early", "late")
    }


def _trained(name: str, seed: int) -> tuple[dict[str, torch.nn.Parameter], Any, Any]:
    model = _model(seed)
    compressor = compress(list(model.items()), name=name)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(list(model.values()), lr=0.1),
        named_parameters=[(f"{name}.{key}", parameter) for key, parameter in model.items()],
        compression=compressor,
    )
    return model, compressor, optimizer


def _draw(
    model: dict[str, torch.nn.Parameter], step: int
) -> dict[torch.nn.Parameter, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + hvd.rank())
    return {
        parameter: torch.randn(parameter.shape, generator=generator) for parameter in model.values()
    }


@cases
def a_collective_before_the_step(name: str) -> dict[str, Any]:
    """One rank lacks a gradient, which Horovod sends for it in the step; all average a number
    before."""
    model, compressor, optimizer = _trained(name, 3)
    for step in range(STEPS):
        optimizer.zero_grad()
        gradients = _draw(model, step)
        if last_rank():
            del gradients[model["late"]]
        give_gradients(gradients)
        hvd.allreduce(torch.ones(1), name=f"{name}.metric")
        optimizer.step()
    return _told([model], [compressor])


@cases
def two_optimizers_in_another_order(name: str) -> dict[str, Any]:
    both = [_trained(f"{name}.{number}", number) for number in range(2)]
    for step in range(STEPS):
        for model, _, optimizer in both[
            :: -1 if step and last_rank() else 1
        ]:  # at first they shake hands
            optimizer.zero_grad()
            give_gradients(_draw(model, step))
        for _, _, optimizer in both:
            optimizer.step()
    return _told([model for model, _, _ in both], [compressor for _, compressor, _ in both])


def _told(models: list[dict[str, torch.nn.Parameter]], compressors: list[Any]) -> dict[str, Any]:
    vain = [compressor._wait._skipped for compressor in compressors]
    steps = [compressor.stats()["steps"] for compressor in compressors]
    for compressor in compressors:
        compressor.close()
    return {
        "digest": digest_of([parameter for model in models for parameter in model.values()]),
        "vain": vain,
        "steps": steps,
    }


@others
def frozen_parameters(name: str) -> dict[str, Any]:
    """How often a rank rests at its last gradient, of parameters of which one gets none."""
    model = _model(5)
    model["early"].requires_grad_(False)
    compressor = compress(list(model.items()), name=name)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(list(model.values()), lr=0.1),
        named_parameters=[(f"{name}.{key}", parameter) for key, parameter in model.items()],
        compression=compressor,
    )
    rests, take, step = [], compressor._wait.take, 0

    def counted(*asked: Any) -> None:
        rests.append(step)
        take(*asked)

    compressor._wait.take = counted
    for step in range(STEPS):
        optimizer.zero_grad()
        give_gradients({model["late"]: _draw(model, step)[model["late"]]})
        optimizer.step()
    compressor.close()
    return {"rests": rests}


@others
def a_step_is_given_up(name: str) -> dict[str, Any]:
    """The loss scale falls after gradients that were handed over and never asked for again."""
    scales = [8.0, 2.0]
    model = _model(7)
    compressor = compress(
        list(model.items()), name=name, density=1.0, grad_scaler=lambda: scales[0]
    )
    for step in range(2):
        drawn = _draw(model, step)
        sent = []
        for key, parameter in model.items():
            parameter.grad = drawn[parameter] * scales[0]
            sent.append((key, *compressor.compress(parameter.grad)))
        if step == 0:
            scales.pop(0)
            continue
        for key, wire, context in sent:
            reduced = hvd.allreduce(wire, name=f"{name}.{key}")
            compressor.decompress(reduced, context)
    residuals = [
        float(tensor["arrays"]["residual"].abs().max())
        for tensor in compressor.state_dict()["tensors"].values()
    ]
    compressor.close()
    return {"scale": [context.scale for _, _, context in sent], "left": residuals}
