"""Between torch tensors and flat numpy arrays, without a copy where none is needed."""

from __future__ import annotations

import numpy as np
import torch

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.frontend.torch.staging import (
    can_be_staged,
    is_on_device,
    to_device,
    to_host,
    write_back,
)
from hvd_sparse.kernels.torch.vector import DeviceVector
from hvd_sparse.types import TensorSpec


def spec_of(name: str, parameter: torch.Tensor) -> TensorSpec:
    """Return a parameter's properties that ranks must agree on.

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
    """Raise UnsupportedInput for a device that nothing can be copied from."""
    if is_on_device(tensor) and not can_be_staged(tensor):
        raise UnsupportedInput(
            f"tensor {name!r} is on {tensor.device}, which torch does not support here: put the "
            "model on the CPU or on the device that torch.accelerator (torch 2.6 or later) reports"
        )


def own_memory(gradient: torch.Tensor) -> np.ndarray | None:
    """Return the gradient's own memory, flat, where it lies there as the result will; else None."""
    if gradient.is_cpu and gradient.dtype in _ACCUMULATORS and gradient.is_contiguous():
        plain = gradient.detach() if gradient.requires_grad else gradient
        memory: np.ndarray = plain.numpy().reshape(-1)
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
    copied = to_host(gradient.detach().to(dtype).contiguous())
    flat: np.ndarray = copied.numpy().reshape(-1)
    return flat


def unflatten(flat: np.ndarray, gradient: torch.Tensor) -> torch.Tensor:
    """Return a flat array as a tensor of the gradient's shape, dtype, memory layout and device."""
    if isinstance(flat, DeviceVector):
        return like(flat.tensor.view(gradient.shape), gradient)
    if write_back(flat, gradient):
        return gradient
    return like(torch.from_numpy(flat).view(gradient.shape), gradient)


def like(dense: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return the same entries in the gradient's dtype, memory layout and device; the tensor itself
    where it has them."""
    there = to_device(dense, gradient)
    if gradient.is_sparse or gradient.is_contiguous():
        return there.to(gradient.dtype)
    return torch.empty_like(gradient).copy_(there)
