"""Worker: mixed precision under Horovod's own recipe, NaN bursts and scale changes."""

from __future__ import annotations

from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import Cases
from _torch_cases import digest_of, run_torch_cases
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


def main() -> None:
    hvd.init()
    run_torch_cases(cases)


if __name__ == "__main__":
    main()
