"""Worker: ranks that train by themselves and exchange every few steps."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases, caught
from _torch_cases import digest_of, flat_parameters, run_torch_cases, summed
from sklearn.datasets import load_digits
from torch import nn

from hvd_sparse.torch import Compression, LocalSteps

cases = Cases()


def small_model(seed: int = 4) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 10))


def backward(model: nn.Module, step: int, dtype: torch.dtype = torch.float32) -> None:
    """A backward pass of a batch that depends on rank and step alone."""
    draw = torch.Generator().manual_seed(1000 * step + hvd.rank())
    model.zero_grad()
    nn.functional.cross_entropy(
        model(torch.randn(8, 24, generator=draw).to(dtype)), torch.randint(10, (8,), generator=draw)
    ).backward()


def local_steps(
    model: nn.Module,
    name: str,
    every: int,
    density: float = 1.0,
    method: Any = Compression.topk,
    **outer: Any,
) -> LocalSteps:
    descent = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    made = partial(method, density=density, name=name, **SPARSE_ONLY)
    return LocalSteps(descent, model.named_parameters(), compression=made, every=every, **outer)


def mean_over_ranks(model: nn.Module, name: str) -> torch.Tensor:
    return summed(flat_parameters(model), name) / hvd.size()


@cases
def everything_sent_is_local_sgd(name: str) -> dict[str, Any]:
    """Beside the mean of the ranks' parameters by Horovod's own allreduce; rank 0's start."""
    model, beside = small_model(seed=hvd.rank()), small_model(seed=0)
    local = local_steps(model, name, every=3)
    descent = torch.optim.SGD(beside.parameters(), lr=0.1, momentum=0.5)
    furthest, apart = 0.0, []
    for step in range(9):
        backward(model, step)
        local.step()
        apart.append(digest_of(model.parameters()))
        backward(beside, step)
        descent.step()
        if step % 3 == 2:
            mean = mean_over_ranks(beside, f"{name}.{step}")
            nn.utils.vector_to_parameters(mean.float(), beside.parameters())
        difference = (flat_parameters(model) - flat_parameters(beside)).abs().max()
        furthest = max(furthest, float(difference))
    steps = local.stats()["steps"]
    local.compressor.close()
    return {"furthest": furthest, "digests": apart, "exchanges": steps}


@cases
def bfloat16_is_local_sgd(name: str) -> dict[str, Any]:
    """From rank 0's start, to the mean of what the ranks' own steps have made of it."""
    model, beside = small_model(seed=hvd.rank()).bfloat16(), small_model(seed=0).bfloat16()
    local = local_steps(model, name, every=2)
    descent, apart = torch.optim.SGD(beside.parameters(), lr=0.1, momentum=0.5), []
    for step in range(2):
        for each, stepper in ((model, local), (beside, descent)):
            backward(each, step, torch.bfloat16)
            stepper.step()
        apart.append(digest_of(model.parameters()))
    mean = mean_over_ranks(beside, name)
    local.compressor.close()
    furthest = float(((flat_parameters(model) - mean) / mean.abs().clamp(min=0.01)).abs().max())
    return {"furthest": furthest, "digests": apart}


@cases
def a_layer_that_was_frozen_meanwhile_is_exchanged(name: str) -> dict[str, Any]:
    """Frozen behind LocalSteps and unfrozen later; and one that was frozen before, refused."""
    model, digests, words = small_model(seed=hvd.rank()), [], []
    local = local_steps(model, name, every=2)
    model[0].requires_grad_(False)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        backward(model, step)
        local.step()
        digests.append(digest_of(model[0].parameters()))
    local.compressor.close()
    model = small_model(seed=hvd.rank())
    model[0].requires_grad_(False)
    local = local_steps(model, name, every=2)
    digests.append(digest_of(model.parameters()))
    model[0].requires_grad_(True)
    for take in (local.step, local.advance):
        backward(model, 0)
        words.append(caught(take))
    local.compressor.close()
    return {"digests": digests, "words": words}


@cases
def outer_momentum_is_nesterovs(name: str) -> dict[str, Any]:
    """DiLoCo's outer step, written out beside it."""
    model = small_model()
    outer = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": True}
    local = local_steps(model, name, every=2, **outer)
    anchor, velocity, furthest = flat_parameters(model), 0.0, 0.0
    for step in range(8):
        backward(model, step)
        local.optimizer.step()
        if step % 2:
            moved = anchor - mean_over_ranks(model, f"{name}.{step}")
            velocity = 0.9 * velocity + moved
            anchor = anchor - 0.7 * (moved + 0.9 * velocity)
        local.advance()
        if step % 2:
            furthest = max(furthest, float((flat_parameters(model) - anchor).abs().max()))
    local.compressor.close()
    return {"furthest": furthest}


def keep_the_ledger(name: str, method: Any) -> dict[str, Any]:
    """All ranks' movements are what was applied and what they keep back."""
    model = small_model()
    local = local_steps(model, name, every=4, density=0.1, method=method)
    start, moved = flat_parameters(model), 0.0
    anchor = start
    for step in range(12):
        backward(model, step)
        local.optimizer.step()
        if step % 4 == 3:
            moved = moved + summed(anchor - flat_parameters(model), f"{name}.{step}")
        local.advance()
        if step % 4 == 3:
            anchor = flat_parameters(model)
    states = local.compressor.state_dict()["tensors"]
    kept = torch.cat([states[key]["arrays"]["residual"] for key, _ in local._named])
    kept = summed(kept, f"{name}.kept")
    applied = hvd.size() * (start - anchor)
    sent = local.stats()["density_achieved"]
    local.compressor.close()
    return {
        "lost": float((moved - applied - kept).abs().max()),
        "kept": float(kept.abs().max()),
        "density": sent,
        "digest": digest_of(model.parameters()),
    }


cases["nothing_is_lost"] = partial(keep_the_ledger, method=Compression.topk)
cases["nothing_is_lost_by_sbc_with_its_delay"] = partial(keep_the_ledger, method=Compression.sbc)


@cases
def a_checkpoint_in_the_middle_goes_on(name: str) -> dict[str, Any]:
    outer = {"outer_lr": 0.7, "outer_momentum": 0.9, "nesterov": True}
    whole, half = small_model(), small_model()
    first = local_steps(whole, f"{name}.whole", 4, 0.1, **outer)
    for step in range(6):
        backward(whole, step)
        first.step()
    saved, descent = first.state_dict(), copy.deepcopy(first.optimizer.state_dict())
    weights = copy.deepcopy(whole.state_dict())
    second = local_steps(half, f"{name}.half", 4, 0.1, **outer)
    half.load_state_dict(weights)
    second.optimizer.load_state_dict(descent)
    second.load_state_dict(saved)
    for step in range(6, 10):
        for model, local in ((whole, first), (half, second)):
            backward(model, step)
            local.step()
    for local in (first, second):
        local.exchange()
        local.compressor.close()
    return {"whole": digest_of(whole.parameters()), "half": digest_of(half.parameters())}


@cases
def what_cannot_be_is_refused(name: str) -> list[str]:
    model, words = small_model(), []
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    horovods = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=[(f"{name}.{key}", p) for key, p in model.named_parameters()],
    )
    topk = partial(Compression.topk, density=0.1)
    for optimizer, options in (
        (horovods, {"compression": topk, "every": 2}),
        (descent, {"compression": "topk", "every": 2}),
        (descent, {"compression": topk, "every": 0}),
        (descent, {"compression": topk, "every": 2, "nesterov": True}),
        (descent, {"compression": topk, "every": 2, "outer_momentum": 1.0}),
    ):
        words.append(caught(partial(LocalSteps, optimizer, model.named_parameters(), **options)))
    return words


def train_on_digits(name: str, every: int) -> dict[str, Any]:
    """A real training; accuracy on images that no rank has seen, and this rank's bytes."""
    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    torch.manual_seed(0)
    order = torch.randperm(len(images))
    seen, unseen = order[:1500], order[1500:]
    mine = seen[hvd.rank() :: hvd.size()]
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    descent = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    made = partial(
        Compression.topk, density=1 / 64, codec="chunk12", min_numel=1, name=name, compress_1d=True
    )
    local = LocalSteps(descent, model.named_parameters(), compression=made, every=every)
    draw = torch.Generator().manual_seed(hvd.rank())
    for _ in range(192):
        batch = mine[torch.randint(len(mine), (32,), generator=draw)]
        descent.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        local.step()
    with torch.no_grad():
        right = (model(images[unseen]).argmax(dim=1) == labels[unseen]).float().mean()
    stats = local.stats()
    nbytes = stats["bytes_sent"] - stats["padding_bytes"]
    local.compressor.close()
    return {"accuracy": float(right), "bytes": nbytes, "digest": digest_of(model.parameters())}


for steps in (1, 8):
    cases[f"digits_every_{steps}"] = partial(train_on_digits, every=steps)


if __name__ == "__main__":
    hvd.init()
    run_torch_cases(cases)
