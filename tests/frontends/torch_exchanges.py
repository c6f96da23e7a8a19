"""Worker: every exchange through PyTorch, with a step that fails, against the numpy core in a world
of threads."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import numpy as np
import torch
from _common import SPARSE_ONLY, Cases
from _exchange_cases import (
    EXCHANGES,
    FAILING_STEP,
    SHAPES,
    STEPS,
    digest_of,
    gradients_of,
    simulate,
)
from _torch_cases import give_gradients, run_torch_cases
from _torch_fault_tools import is_usable, last_rank, raised_by
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

    applied, failed = [], {}
    for step in range(STEPS):
        gradients = gradients_of(hvd.rank(), step)
        if step != FAILING_STEP:
            take(gradients)
            applied += [parameter.grad.numpy().copy() for parameter in parameters.values()]
            continue
        if last_rank():
            gradients[1][2, 1] = np.nan
        failed = raised_by(lambda gradients=gradients: take(gradients))  # type: ignore[misc]
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
        "raised": failed["raised"],
        "phases": len(phases),
        "is_usable": is_usable(name),
    }


if __name__ == "__main__":
    hvd.init()
    run_torch_cases(Cases(dict.fromkeys(EXCHANGES, same_as_in_threads)))
