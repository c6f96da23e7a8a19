"""Worker: the memory of PyTorch's compressor."""

from __future__ import annotations

import gc
from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _memory import CASES, SHAPE, build, measure, resident_bytes
from _torch_cases import run_torch_cases
from _torch_laws import optimizer_without_motion

from hvd_sparse.torch import Compression


class Give(torch.autograd.Function):
    """A loss whose gradient is a given tensor, and that makes no other."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


def train(
    name: str,
    selector: str,
    options: dict[str, Any],
    shape: tuple[int, int] = SHAPE,
    is_contiguous: bool = True,
) -> dict[str, float]:
    gc.collect()
    matrix = torch.ones(shape) if is_contiguous else torch.ones(shape[::-1]).t()
    parameter, gradient = torch.nn.Parameter(matrix), torch.ones_like(matrix)
    parameter.grad = torch.ones_like(matrix)
    base = resident_bytes()
    compressor = build(Compression, [("p", parameter)], selector, options, name)
    optimizer = optimizer_without_motion({"p": parameter}, compressor)

    def settle() -> None:
        gradient.normal_()
        # also writes the pages of a reduced gradient that nobody has written
        parameter.grad.zero_()

    def step() -> None:
        Give.apply(parameter, gradient).backward()
        optimizer.step()

    measured = measure(settle, step, base)
    assert compressor.stats()["sparse_steps"] > 0
    compressor.close()
    return measured


def main() -> None:
    hvd.init()
    # What Horovod and the framework take at first is nobody's fault: the first case is not looked
    # at.
    cases: dict[str, Any] = {
        "warm_up": partial(train, selector="topk", options={}, shape=(64, 128))
    }
    for case, (selector, options) in CASES.items():
        cases[case] = partial(train, selector=selector, options=options)
    cases["not_contiguous"] = partial(
        train, selector="topk", options={"rollback": False}, is_contiguous=False
    )
    run_torch_cases(cases)


if __name__ == "__main__":
    main()
