"""Worker: mixed precision under Horovod's own recipe, NaN bursts and scale changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _torch_cases import digest_of, give_gradients, run_torch_cases
from _torch_laws import optimizer_without_motion
from torch import nn

from hvd_sparse.torch import Compression

cases = Cases()
STEPS, BAD_STEPS = 12, (4, 5, 9)


def train(name: str, *, dtype: torch.dtype) -> dict[str, Any]:
    """Autocast, a scaler that halves on Inf and doubles soon, and gradients that overflow on one
    rank."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)
    named = list(model.named_parameters())
    compressor = Compression.topk(
        named, density=0.2, name=name, min_numel=20, allow_dense=False, grad_scaler=scaler
    )
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        named_parameters=[(f"{name}.{key}", parameter) for key, parameter in named],
        compression=compressor,
    )
    seen, scales, kept = [], [], []
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(100 * step + hvd.rank())
        inputs, targets = torch.randn(8, 16, generator=draw), torch.randn(8, 4, generator=draw)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = nn.functional.mse_loss(model(inputs).float(), targets)
        bad = torch.inf if step in BAD_STEPS and hvd.rank() == hvd.size() - 1 else 1.0
        spoil = model[2].weight.register_hook(lambda gradient, bad=bad: gradient * bad)
        before, weights = residuals(compressor), digest_of(model.parameters())
        scaler.scale(loss).backward()
        spoil.remove()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        seen.append(not_finite(named))
        nn.utils.clip_grad_norm_(model.parameters(), 1e3)  # spreads NaN over all gradients
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        kept.append([residuals(compressor) == before, digest_of(model.parameters()) == weights])
    stats = compressor.stats()
    compressor.close()
    end = digest_of(model.parameters())
    return {
        "seen": seen,
        "scales": scales,
        "kept": kept,
        "end": end,
        "nonfinite_steps": stats["nonfinite_steps"],
    }


def not_finite(named: Any) -> list[str]:
    return [key for key, parameter in named if not torch.isfinite(parameter.grad).all()]


def residuals(compressor: Any) -> dict[str, str]:
    tensors = compressor.state_dict()["tensors"]
    return {key: digest_of([tensor["arrays"]["residual"]]) for key, tensor in tensors.items()}


for label, dtype in {"float16": torch.float16, "bfloat16": torch.bfloat16}.items():
    cases[f"recipe_{label}"] = partial(train, dtype=dtype)


def pending_mass(name: str, *, dtype: torch.dtype) -> dict[str, Any]:
    """Gradients of 16 bits under scales that change: what was given, unscaled, is what was applied
    and what is kept."""
    scale = [1.0]
    parameters = {"w": nn.Parameter(torch.zeros(12, 10, dtype=dtype))}
    compressor = Compression.topk(
        parameters.items(), density=0.1, name=name, grad_scaler=lambda: scale[0], **SPARSE_ONLY
    )
    optimizer = optimizer_without_motion(parameters, compressor, op=hvd.Sum)
    given, applied = torch.zeros(120).double(), torch.zeros(120).double()
    for step in range(20):
        scale[0] = 2.0 ** (step % 5)
        draw = torch.Generator().manual_seed(100 * step + hvd.rank())
        gradient = torch.randint(-3, 4, (12, 10), generator=draw).to(dtype)
        optimizer.zero_grad()
        give_gradients({parameters["w"]: gradient * scale[0]})
        optimizer.step()
        given += gradient.double().flatten()
        applied += parameters["w"].grad.double().flatten() / scale[0]
    kept = compressor.state_dict()["tensors"]["w"]["arrays"]["residual"]
    missing = hvd.allreduce(given - kept.double(), op=hvd.Sum, name=f"{name}.missing") - applied
    compressor.close()
    return {
        "missing": float(missing.abs().max()),
        "kept": float(kept.abs().max()),
        "dtype": str(kept.dtype),
    }


for label, dtype in {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
}.items():
    cases[f"pending_mass_{label}"] = partial(pending_mass, dtype=dtype)


def main() -> None:
    hvd.init()
    run_torch_cases(cases)


if __name__ == "__main__":
    main()
