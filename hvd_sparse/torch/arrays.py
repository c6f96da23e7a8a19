"""Between torch tensors and flat numpy arrays, without a copy where none is needed."""

from __future__ import annotations

import numpy as np
import torch

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.types import TensorSpec


def spec_of(name: str, parameter: torch.Tensor) -> TensorSpec:
    """Return what ranks must agree on about a parameter.

    Raises
    ------
    UnsupportedInput : it cannot be compressed
    """
    spec = TensorSpec(name, tuple(parameter.shape), dtype_of(parameter))
    check_device(name, parameter)
    return spec


def dtype_of(tensor: torch.Tensor) -> str:
    """Return the name that a tensor's dtype has in all frameworks."""
    return str(tensor.dtype).removeprefix("torch.")


def check_device(name: str, tensor: torch.Tensor) -> None:
    """Raise UnsupportedInput for a tensor that is on no device that can be selected on."""
    if tensor.device.type not in ("cpu", "meta"):
        raise UnsupportedInput(
            f"tensor {name!r} is on {tensor.device}: this version selects on the CPU only; "
            "train on the CPU, or leave it to hvd.Compression.fp16"
        )


def own_memory(gradient: torch.Tensor) -> np.ndarray | None:
    """Return the gradient's own memory, flat, where it lies there as the result will; else None."""
    if gradient.dtype in _ACCUMULATORS and gradient.is_contiguous():
        memory: np.ndarray = gradient.detach().numpy().reshape(-1)
        return memory
    return None


_ACCUMULATORS = (torch.float32, torch.float64)


def flatten(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """Return the gradient as a flat array of the accumulator's dtype, in logical order.

    A view of a contiguous float32 or float64 gradient; one copy of any other (ranks may differ in
    memory layout).
    """
    memory = own_memory(gradient)
    if memory is not None:
        return memory
    dtype = torch.float64 if spec.accumulator == np.float64 else torch.float32
    copied: np.ndarray = gradient.detach().to(dtype).contiguous().numpy().reshape(-1)
    return copied


def unflatten(flat: np.ndarray, gradient: torch.Tensor) -> torch.Tensor:
    """Return a flat array as a tensor of the gradient's shape, dtype and memory layout."""
    return like(torch.from_numpy(flat).view(gradient.shape), gradient)


def like(dense: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The same entries in the gradient's dtype and memory layout; itself where it has them."""
    if gradient.is_sparse or gradient.is_contiguous():
        return dense.to(gradient.dtype)
    return torch.empty_like(gradient).copy_(dense)
