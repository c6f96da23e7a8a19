"""Gradients that a program changes between ``backward`` and ``step``, without Horovod's
``synchronize``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import Cases, Scripted
from _torch_fault_tools import (
    WIDTH,
    compress,
    is_usable,
    last_rank,
    optimize,
    raised_by,
    small_model,
    step_of,
)
from _torch_recoveries import forget_step, residuals_of
from torch import nn

from hvd_sparse.torch import Compression

cases = Cases()
Change = Callable[[nn.Module, Any], None]


def clip(model: nn.Module, _: Any) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.001)


def unscale(model: nn.Module, optimizer: Any) -> None:
    """Raises no tensor's version."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(torch.ones(1))
    scaler.unscale_(optimizer)


def changed_step(model: nn.Module, optimizer: Any, change: Change) -> Callable[[], None]:
    def take() -> None:
        model.zero_grad()
        model(torch.randn(5, WIDTH)).pow(2).mean().backward()
        change(model, optimizer)
        optimizer.step()

    return take


def everywhere(name: str, *, change: Change, **options: Any) -> dict[str, Any]:
    """Two steps, one with a change, and two more; what is kept back is what it was before the
    third."""
    model = small_model()
    compressor = compress(model.named_parameters(), name=name, **options)
    optimizer = optimize(model, compressor)
    for _ in range(2):
        step_of(model, optimizer)()
    before = residuals_of(compressor)
    result = raised_by(changed_step(model, optimizer, change))
    is_kept = residuals_of(compressor) == before
    forget_step(optimizer)
    for _ in range(2):
        step_of(model, optimizer)()
    steps = compressor.stats()["steps"]
    compressor.close()
    return {**result, "is_kept": is_kept, "steps": steps, "is_usable": is_usable(name)}


cases["clipped"] = partial(everywhere, change=clip)
cases["unscaled"] = partial(everywhere, change=unscale)
cases["clipped_in_an_exchange_of_two_phases"] = partial(everywhere, change=clip, exchange="oktopk")
cases["clipped_in_dense_steps"] = partial(everywhere, change=clip, density=1.0, allow_dense=True)


@cases
def clipped_where_auto_sends_float16(name: str) -> dict[str, Any]:
    model = small_model()
    compressor = Compression.auto(model.named_parameters(), name=name, min_numel=1, ways=("fp16",))
    compressor._policy.trial = Scripted(["fp16"])
    result = raised_by(changed_step(model, optimize(model, compressor), clip))
    compressor.close()
    return {**result, "is_usable": is_usable(name)}


def on_one_rank(name: str, **options: Any) -> dict[str, Any]:
    """That rank raises, the others finish the step, and all raise in the next."""
    model = small_model()
    compressor = compress(model.named_parameters(), name=name, **options)
    optimizer = optimize(model, compressor)
    step_of(model, optimizer)()
    first = raised_by(
        changed_step(model, optimizer, clip) if last_rank() else step_of(model, optimizer)
    )
    forget_step(optimizer)
    then = raised_by(step_of(model, optimizer))
    compressor.close()
    return {"first": first, "then": then, "is_usable": is_usable(name)}


cases["clipped_on_one_rank"] = on_one_rank
cases["clipped_on_one_rank_in_an_exchange_of_two_phases"] = partial(on_one_rank, exchange="oktopk")


def given_to_horovod(name: str, compression: Any) -> dict[str, Any]:
    model = small_model()
    named = [(f"{name}.{key}", parameter) for key, parameter in model.named_parameters()]
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(descent, named_parameters=named, compression=compression)
    return {**raised_by(step_of(model, optimizer)), "is_usable": is_usable(name)}


cases["a_method_that_is_not_called"] = partial(given_to_horovod, compression=Compression.ldte_bs)
cases["the_class_of_methods"] = partial(given_to_horovod, compression=Compression)
