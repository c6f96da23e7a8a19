"""A learning rate schedule that is there before its optimizer is handed over: torch puts a ``step``
of the old class on the object, which would apply momentum once more."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("torch")
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register
from hvd_sparse.errors import InvalidOption

STEPS = 6
pytestmark = pytest.mark.usefixtures("world_of_one")


def make_optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return torch.optim.AdamW(model.parameters(), lr=0.05)


def trained(name: str, *, first: str) -> list[torch.Tensor]:
    """Train with all entries sent; ``first`` is what is made first, schedule or compressor, or
    neither."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 6))
    optimizer, handle = make_optimizer(name, model), None
    for part in ("schedule", "compressor") if first == "schedule" else ("compressor", "schedule"):
        if part == "schedule":
            schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        elif first != "neither":
            handle = register(model, density=1, min_numel=1, optimizer=optimizer)
    for step in range(STEPS):
        optimizer.zero_grad()
        model(torch.full((2, 8), step - 2.0)).square().sum().backward()
        optimizer.step()
        schedule.step()
    if handle is not None:
        handle.close()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_a_schedule_may_be_made_before_the_compressor_or_behind_it(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        before, behind = (trained(name, first=first) for first in ("schedule", "compressor"))
    for one, other in zip(before, behind, strict=True):
        assert torch.equal(one, other)


def test_momentum_is_applied_once() -> None:
    for mine, plain in zip(trained("sgd", first="schedule"), trained("sgd", first="neither")):
        torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-5)


def test_a_step_that_somebody_put_on_the_object_is_refused() -> None:
    model = DistributedDataParallel(nn.Linear(8, 6))
    optimizer = make_optimizer("sgd", model)
    optimizer.step = optimizer.step
    with pytest.raises(InvalidOption, match="was replaced on the object"):
        register(model, density=1, optimizer=optimizer)
