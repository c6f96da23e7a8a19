"""Worker: every exchange through PyTorch, with a step that fails, against the numpy core in a world
of threads."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from _common import SPARSE_ONLY, Cases
from _exchange_cases import (
    BEYOND_STEP,
    EXCHANGES,
    FAILING_STEPS,
    NAN_STEP,
    SHAPES,
    STEPS,
    broken_gradients_of,
    digest_of,
    gradients_of,
    simulate,
    spoilt,
)
from _torch_cases import give_gradients, run_torch_cases
from _torch_fault_tools import is_usable, raised_by
from _torch_laws import optimizer_without_motion
from _torch_recoveries import forget_step
from torch import nn

from hvd_sparse.torch import Compression


def same_as_in_threads(name: str) -> dict[str, Any]:
    parameters = {f"{name}.{i}": nn.Parameter(torch.zeros(shape)) for i, shape in enumerate(SHAPES)}
    compressor = Compression.build(parameters.items(), name=name, **EXCHANGES[name], **SPARSE_ONLY)
    optimizer = optimizer_without_motion(parameters, compressor, op=hvd.Sum)

    def take(gradients: list[np.ndarray]) -> None:
        optimizer.zero_grad()
        give_gradients({p: torch.from_numpy(g) for p, g in zip(parameters.values(), gradients)})
        optimizer.step()

    applied: list[np.ndarray] = []
    failed: dict[int, str] = {}
    for step in range(STEPS):
        if step not in FAILING_STEPS:
            take(gradients_of(hvd.rank(), step))
            applied += [parameter.grad.numpy().copy() for parameter in parameters.values()]
            continue
        gradients = broken_gradients_of(hvd.rank(), hvd.size(), step)
        failed[step] = raised_by(lambda gradients=gradients: take(gradients))["raised"]  # type: ignore[misc]
        if failed[step] == "nothing was raised":
            failed[step] = spoilt([parameter.grad.numpy() for parameter in parameters.values()])
        forget_step(optimizer)
    tensors = compressor.state_dict()["tensors"]
    kept = [tensors[key]["arrays"]["residual"] for key in parameters]
    expected = simulate(
        compressor.configuration,
        compressor.step.specs,
        compressor.step.buckets,
        hvd.size(),
        hvd.rank(),
    )
    phases = compressor.step.exchange.phases(compressor.configuration.selector, hvd.size())
    compressor.close()
    return {
        "applied": digest_of(applied),
        "kept": digest_of(kept),
        "expected": expected,
        "raised": failed[NAN_STEP],
        "beyond_range": failed[BEYOND_STEP],
        "phases": len(phases),
        "is_usable": is_usable(name),
    }


if __name__ == "__main__":
    hvd.init()
    run_torch_cases(Cases(dict.fromkeys(EXCHANGES, same_as_in_threads)))
