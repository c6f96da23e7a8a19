"""Worker: the memory of PyTorch's compressor."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from _common import Cases
from _memory import OPTIONS, SHAPE, measure, resident_bytes
from _torch_cases import run_torch_cases
from _torch_laws import optimizer_without_motion

from hvd_sparse.torch import Compression

cases = Cases()


class Give(torch.autograd.Function):
    """A loss whose gradient is a given tensor, and that makes no other."""

    @staticmethod
    def forward(ctx: Any, parameter: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        ctx.gradient = gradient
        return parameter.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.gradient, None


def train(name: str, method: str, rollback: bool, shape: tuple[int, int] = SHAPE) -> dict[str, float]:
    parameter, gradient = torch.nn.Parameter(torch.ones(shape)), torch.ones(shape)
    parameter.grad = torch.ones(shape)
    base = resident_bytes()
    compressor = getattr(Compression, method)([("p", parameter)], rollback=rollback, name=name, **OPTIONS)
    optimizer = optimizer_without_motion({"p": parameter}, compressor)

    def settle() -> None:
        gradient.normal_()
        parameter.grad.zero_()  # also writes the pages of a reduced gradient that nobody has written

    def step() -> None:
        Give.apply(parameter, gradient).backward()
        optimizer.step()

    measured = measure(settle, step, base)
    assert compressor.stats()["sparse_steps"] > 0
    compressor.close()
    return measured


@cases
def warm_up(name: str) -> dict[str, float]:
    """What Horovod and the framework take at first is nobody's fault."""
    return train(name, "topk", rollback=False, shape=(64, 128))


@cases
def topk_without_rollback(name: str) -> dict[str, float]:
    return train(name, "topk", rollback=False)


@cases
def topk_with_rollback(name: str) -> dict[str, float]:
    return train(name, "topk", rollback=True)


@cases
def ldte_bs_without_rollback(name: str) -> dict[str, float]:
    return train(name, "ldte_bs", rollback=False)


def main() -> None:
    hvd.init()
    run_torch_cases(cases)


if __name__ == "__main__":
    main()
