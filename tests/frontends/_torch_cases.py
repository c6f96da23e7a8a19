"""What the PyTorch workers share: small tools for their cases."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

import horovod.torch as hvd
import torch
from _common import Case, run_cases


def run_torch_cases(cases: Mapping[str, Case]) -> None:
    """Run cases on this rank, between ``hvd.init`` and the end of the process."""
    torch.set_num_threads(1)
    run_cases(cases, hvd.rank(), hvd.barrier)
    hvd.shutdown()


def flat_parameters(model: torch.nn.Module) -> torch.Tensor:
    """All parameters of a model as one float64 vector."""
    return torch.cat([parameter.detach().double().reshape(-1) for parameter in model.parameters()])


def digest_of(tensors: Iterable[torch.Tensor]) -> str:
    """The bits of tensors in few letters."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def give_gradients(gradients: Mapping[torch.nn.Parameter, torch.Tensor]) -> None:
    """Make a backward pass after which each parameter's gradient is exactly the one chosen."""
    sum((parameter * gradient).sum() for parameter, gradient in gradients.items()).backward()


def summed(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """The sum of a tensor over all ranks, in float64, by Horovod's dense allreduce."""
    return hvd.allreduce(tensor.double().contiguous(), op=hvd.Sum, name=f"test.{name}")
