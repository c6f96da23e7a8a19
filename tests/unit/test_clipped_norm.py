"""``clip_grad_norm=``: torch's ``clip_grad_norm_``, but before the selection."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("horovod.torch", exc_type=ImportError)
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register
from hvd_sparse.errors import InvalidOption
from hvd_sparse.torch.gradients import clip_alone

BOUND, STEPS = 0.5, 6
MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.02),
    "plain": lambda p: torch.optim.SGD(p, 0.1),
}
pytestmark = pytest.mark.usefixtures("world_of_one")


def trained(name: str, *, registered: bool, scaled: bool = False) -> tuple[list[Any], list[float]]:
    """Parameters, and the largest entry of the first weight's gradient in every step."""
    torch.manual_seed(0)
    layers = nn.Linear(8, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 2)
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.002)
    optimizer = MAKERS[name](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=scaled)
    handle = None
    if registered:
        options: dict[str, Any] = {"min_numel": 10**6, "optimizer": optimizer}
        if name == "plain":
            options = {"min_numel": 1, "compress_1d": True, "allow_dense": False}
        if scaled:
            options["grad_scaler"] = scaler
        handle = register(model, "topk", density=1.0, clip_grad_norm=BOUND, **options)
    tops = []
    for step in range(STEPS):
        optimizer.zero_grad()
        # the last steps are within the bound
        loss = model(torch.full((3, 8), step - 2.0)).square().mean() * 4.0 ** (2 - step)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        if not registered:
            torch.nn.utils.clip_grad_norm_(model.parameters(), BOUND)
        tops.append(float(model.module[0].weight.grad.abs().max()))
        scaler.step(optimizer)
        scaler.update()
    if handle is not None:
        assert len(handle.step.buckets) > 1 or name != "plain"
        handle.close()
    return [p.detach() for p in model.parameters()], tops


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_everything_sent_trains_as_with_torchs_clipping(name: str, scaled: bool) -> None:
    ends, tops = trained(name, registered=True, scaled=scaled)
    plain_ends, plain_tops = trained(name, registered=False)
    for one, other in zip(ends, plain_ends, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)
    if name == "plain":
        assert tops == pytest.approx(plain_tops, rel=1e-4)


def test_of_one_rank_alone_horovod_clips_nothing_and_the_step_does() -> None:
    ends = []
    for is_ours in (True, False):
        weight = nn.Parameter(torch.linspace(-1.0, 1.0, 12))
        optimizer, other = torch.optim.SGD([weight], 0.1), torch.optim.SGD([nn.Parameter()], 0.1)
        handle = clip_alone([weight], BOUND) if is_ours else None
        for _ in range(3):
            optimizer.zero_grad()
            weight.square().sum().backward()
            if handle is None:
                torch.nn.utils.clip_grad_norm_([weight], BOUND)
            other.step()
            optimizer.step()
        if handle is not None:
            handle.remove()
        ends.append(weight.detach())
    assert torch.equal(*ends)


def test_a_gradient_that_is_not_finite_is_seen_as_ever() -> None:
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 6), nn.Linear(6, 2)))
    handle = register(model, "topk", density=0.5, min_numel=1, clip_grad_norm=BOUND)
    model(torch.full((2, 8), torch.inf)).sum().backward()
    assert model.module[0].weight.grad.isnan().all()
    assert handle.stats()["nonfinite_steps"] == 1
    handle.close()


def test_a_density_that_hides_has_nothing_to_hide_behind() -> None:
    model = DistributedDataParallel(nn.Linear(8, 6))
    with pytest.raises(
        InvalidOption, match=r"clip_grad_norm is 0\.5, which waits for all gradients"
    ):
        register(model, "topk", density="hiding", clip_grad_norm=BOUND)
