"""Converts torch tensors to flat numpy arrays or flat device vectors, and back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import DTypeLike

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.kernels.contract import Zeros
from hvd_sparse.kernels.torch.passes import deliver
from hvd_sparse.kernels.torch.vector import (
    Copy,
    DeviceVector,
    fetch,
    fetch_all,
    run_together,
    upload,
)
from hvd_sparse.step.records import Late
from hvd_sparse.types import TensorSpec

TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


def accelerator() -> str | None:
    """Return the type of torch's accelerator, e.g. "cuda"; None without one or before torch 2.6."""
    if not hasattr(torch, "accelerator"):
        return None
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else str(device.type)


def is_on_device(tensor: torch.Tensor) -> bool:
    return not tensor.is_cpu and tensor.device.type != "meta"


def check_device(name: str, tensor: torch.Tensor) -> None:
    if is_on_device(tensor) and tensor.device.type != accelerator():
        raise UnsupportedInput(
            f"tensor {name!r} is on {tensor.device}, which torch does not support here: put the "
            "model on the CPU or on the device that torch.accelerator (torch 2.6 or later) reports"
        )


def check_accumulator(spec: TensorSpec, gradient: torch.Tensor) -> None:
    """Raise UnsupportedInput for a float32 gradient if the residual is float64, and vice versa."""
    if gradient.dtype in TORCH.values() and gradient.dtype != TORCH[spec.accumulator]:
        raise UnsupportedInput(
            f"tensor {spec.key!r} is {dtype_of(gradient)} now, and was {spec.dtype} when the "
            "compressor was made: convert the model first, and then make the compressor"
        )


def spec_of(name: str, parameter: torch.Tensor) -> TensorSpec:
    spec = TensorSpec(name, tuple(parameter.shape), dtype_of(parameter))
    check_device(name, parameter)
    return spec


def dtype_of(tensor: torch.Tensor) -> str:
    """Return the name of a tensor's dtype without torch's prefix, for example "float32"."""
    return str(tensor.dtype).removeprefix("torch.")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(fetch(tensor.detach())) if is_on_device(tensor) else tensor


def own_memory(gradient: torch.Tensor) -> np.ndarray | None:
    """Return a flat view of the gradient's memory if the reduced gradient can be written there, or
    else None."""
    if gradient.is_cpu and gradient.dtype in TORCH.values() and gradient.is_contiguous():
        plain = gradient.detach() if gradient.requires_grad else gradient
        memory: np.ndarray = plain.numpy().reshape(-1)
        return memory
    return None


def flatten(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """Return the gradient as a flat array of the residual's dtype, in row-major order. The array is
    a view if the gradient is contiguous, float32 or float64, and on the CPU; otherwise it is a
    copy."""
    memory = own_memory(gradient)
    if memory is not None:
        return memory
    flat: np.ndarray = to_host(_wide(gradient, spec)).numpy()
    return flat


def _wide(gradient: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return gradient.detach().to(TORCH[spec.accumulator]).contiguous().view(-1)


def unflatten(flat: np.ndarray, gradient: torch.Tensor) -> torch.Tensor:
    if isinstance(flat, DeviceVector):
        there = flat.tensor
        if there.dtype == gradient.dtype and there.data_ptr() == gradient.data_ptr():
            return gradient  # a new tensor around its memory would keep the old one alive
        return like(there.view(gradient.shape), gradient)
    if not gradient.is_cpu and write_back(flat, gradient):
        return gradient
    return like(torch.from_numpy(flat).view(gradient.shape), gradient)


def write_back(flat: np.ndarray, gradient: torch.Tensor) -> bool:
    """Copy a flat result from the host to the memory of a gradient on a device, and return True.
    Return False, without a copy, if the gradient is on the host, has another dtype than the result,
    or is not contiguous."""
    kind = torch.float64 if flat.dtype == np.float64 else torch.float32
    if not is_on_device(gradient) or gradient.dtype != kind or not gradient.is_contiguous():
        return False
    gradient.detach().view(-1).copy_(upload(flat, gradient.device))
    return True


def like(dense: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return ``dense`` with the gradient's dtype, layout in memory and device. It is copied only if
    necessary."""
    there = dense
    if gradient.device != dense.device:
        there = upload(dense.numpy(), gradient.device)
    if gradient.is_sparse or gradient.is_contiguous():
        return there.to(gradient.dtype)
    return torch.empty_like(gradient).copy_(there)


def vector_of(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """Return the gradient as a flat vector on its device, copied only if necessary."""
    return cast(np.ndarray, DeviceVector(_wide(gradient, spec)))


def late_gradient(gradient: torch.Tensor, spec: TensorSpec) -> Late:
    return Copy(_wide(gradient, spec))


class TorchDevices:
    """Implements ``step.records.Devices``: allocates vectors on the tensors' devices, and copies
    values from there to the host. ``devices`` has the device of each tensor; None is the host."""

    def __init__(self, devices: Sequence[torch.device | None]) -> None:
        self._devices = devices

    def zeros_of(self, position: int) -> Zeros | None:
        device = self._devices[position]
        if device is None:
            return None

        def zeros(numel: int, dtype: DTypeLike) -> np.ndarray:
            vector = torch.zeros(numel, dtype=TORCH[np.dtype(dtype)], device=device)
            return cast(np.ndarray, DeviceVector(vector))

        return zeros

    def send(self, answers: Sequence[object], late: Sequence[Late]) -> Callable[[], bool]:
        return deliver(answers, cast("Sequence[Copy]", late))  # see ``late_gradient``

    def together(self, walks: Sequence[Callable[[], None]]) -> None:
        run_together(walks, fetch_all)
