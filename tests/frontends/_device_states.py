"""Laws of gradients on a device: states that travel, other layouts, and local steps."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _device_laws import layers
from _device_runs import CPU, device_wire, engine_on, law
from _method_cases import STEPS, gradients_of
from _torch_cases import digest_of, give_gradients, optimizer_without_motion
from torch import nn

from hvd_sparse.torch import Compression, LocalSteps


@law
def local_steps(name: str, device: torch.device) -> dict[str, Any]:
    """Pseudo-gradients on the device; the parameters are spread by Horovod's own broadcast."""
    torch.manual_seed(0)
    model = nn.Sequential(*layers()).to(device)
    is_carried = device != CPU and hvd.nccl_built()
    wire = {"wire": "device" if is_carried else "host"}
    with nullcontext() if device == CPU or is_carried else device_wire():
        local = LocalSteps(
            torch.optim.AdamW(model.parameters(), lr=0.01),
            model.named_parameters(),
            compression=partial(
                Compression.topk, density=0.1, min_numel=40, name=name, **engine_on(device), **wire
            ),
            every=2,
        )
        draw = torch.Generator().manual_seed(hvd.rank())
        inputs, targets = (
            torch.randn(16, 20, generator=draw),
            torch.randint(5, (16,), generator=draw),
        )
        for _ in range(STEPS):
            local.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            local.step()
        result = {
            "applied": digest_of(parameter.cpu() for parameter in model.parameters()),
            "exchanges": local.stats()["sparse_steps"],
            "ways": sorted(set(local.stats()["ways"].values())),
        }
    local.compressor.close()
    return result


def take_steps(
    parameters: dict[str, nn.Parameter], optimizer: Any, drawn: Iterable[Any]
) -> list[torch.Tensor]:
    """Steps of these gradients, one step's by parameter; return what was applied, on the CPU."""
    applied = []
    for gradients in drawn:
        optimizer.zero_grad()
        places = zip(parameters.values(), gradients)
        give_gradients({p: gradient.to(p.device) for p, gradient in places})
        optimizer.step()
        applied += [parameter.grad.cpu() for parameter in parameters.values()]
    return applied


def drawn_in(steps: Iterable[int]) -> list[list[torch.Tensor]]:
    return [[torch.from_numpy(gradients_of(hvd.rank(), step)[0]).float()] for step in steps]


@law
def a_checkpoint_to_and_from_the_cpu(name: str, device: torch.device) -> dict[str, Any]:
    """The state of a compressor on the device goes on in one on the CPU, and the other way."""
    found = {}
    for number, places in enumerate(((device, CPU), (CPU, device))):
        state, applied = None, []
        for place in places:
            parameters = {"t": nn.Parameter(torch.zeros(30, 20, device=place))}
            compressor = Compression.topk(
                parameters.items(), density=0.1, name=f"{name}.{number}.{place.type}"
            )
            optimizer = optimizer_without_motion(parameters, compressor)
            if state is not None:
                compressor.load_state_dict(state)
            applied += take_steps(parameters, optimizer, drawn_in(range(3)))
            state = compressor.state_dict()
            compressor.close()
            del optimizer
        found[f"applied {number}"] = digest_of(applied)
    return found


@law
def a_gradient_in_another_layout(name: str, device: torch.device) -> dict[str, Any]:
    """channels_last."""
    weight = torch.arange(8 * 4 * 3 * 3.0).view(8, 4, 3, 3).to(device)
    parameters = {"w": nn.Parameter(weight.contiguous(memory_format=torch.channels_last))}
    compressor = Compression.topk(parameters.items(), density=0.1, name=name, min_numel=1)
    optimizer = optimizer_without_motion(parameters, compressor)
    draws = [torch.Generator().manual_seed(10 * step + hvd.rank()) for step in range(3)]
    drawn = [[torch.randn(8, 4, 3, 3, generator=draw)] for draw in draws]
    applied = take_steps(parameters, optimizer, drawn)
    compressor.close()
    return {"applied": digest_of(applied)}


@law
def gradients_of_one_buffer(name: str, device: torch.device) -> dict[str, Any]:
    """Gradients are parts of one tensor, which the program keeps; two passes add up to a step."""
    shapes = {"a": (30, 20), "b": (9, 7), "c": (6, 5, 4)}
    parameters = {
        key: nn.Parameter(torch.zeros(shape, device=device)) for key, shape in shapes.items()
    }
    sizes = [parameter.numel() for parameter in parameters.values()]
    buffer = torch.zeros(sum(sizes), device=device)
    for parameter, part in zip(parameters.values(), buffer.split(sizes)):
        parameter.grad = part.view(parameter.shape)
    compressor = Compression.ldte_bs(
        parameters.items(), density=0.1, name=name, min_numel=1, **engine_on(device)
    )
    optimizer = optimizer_without_motion(parameters, compressor, backward_passes_per_step=2)
    applied = []
    for step in range(4):
        buffer.zero_()
        for half in range(2):
            draw = torch.Generator().manual_seed(100 * step + 10 * half + hvd.rank())
            drawn = {
                p: torch.randn(p.shape, generator=draw).to(device) for p in parameters.values()
            }
            give_gradients(drawn)
        optimizer.step()
        applied.append(torch.cat([p.grad.flatten() for p in parameters.values()]).cpu())
    compressor.close()
    return {"applied": digest_of(applied)}
