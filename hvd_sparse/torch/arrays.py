"""Between torch tensors and flat numpy arrays, without a copy where none is needed."""

from __future__ import annotations

import numpy as np
import torch

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.types import TensorSpec


def spec_of(name: str, parameter: torch.Tensor) -> TensorSpec:
    """What ranks must agree on about a parameter; UnsupportedInput for what cannot be
    compressed."""
    spec = TensorSpec(name, tuple(parameter.shape), str(parameter.dtype).removeprefix("torch."))
    check_device(name, parameter)
    return spec


def check_device(name: str, tensor: torch.Tensor) -> None:
    if tensor.device.type not in ("cpu", "meta"):
        raise UnsupportedInput(
            f"tensor {name!r} is on {tensor.device}: this version selects on the CPU only; "
            "train on the CPU, or leave it to hvd.Compression.fp16"
        )


def flatten(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """The gradient as a flat array of the accumulator's dtype, in logical order.

    A view of a contiguous float32 or float64 gradient; one copy of any other (ranks may differ in
    memory layout).
    """
    dtype = torch.float64 if spec.accumulator == np.float64 else torch.float32
    flat: np.ndarray = gradient.detach().to(dtype).contiguous().view(-1).numpy()
    return flat


def memory_of(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray | None:
    """The gradient's own memory, where it lies as the result will: it has been accumulated and is
    free."""
    if not gradient.is_contiguous() or gradient.dtype not in (torch.float32, torch.float64):
        return None
    return flatten(gradient, spec)


def unflatten(flat: np.ndarray, gradient: torch.Tensor) -> torch.Tensor:
    """A flat array as a tensor of the gradient's shape, dtype and memory layout."""
    dense = torch.from_numpy(flat).view(gradient.shape)
    return like(dense, gradient)


def like(dense: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The same entries in the gradient's dtype and memory layout; itself where it has them."""
    if gradient.is_sparse or gradient.is_contiguous():
        return dense.to(gradient.dtype)
    return torch.empty_like(gradient).copy_(dense)
