"""Torch tensors as flat vectors, of numpy or of a device, and back, without needless copies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import DTypeLike

from hvd_sparse.errors import UnsupportedInput
from hvd_sparse.kernels.contract import Zeros
from hvd_sparse.kernels.torch.passes import Coming, Delivery
from hvd_sparse.kernels.torch.vector import (
    Copy,
    DeviceVector,
    fetch,
    fetch_all,
    run_together,
    upload,
)
from hvd_sparse.step.records import Answer, Late
from hvd_sparse.types import TensorSpec

TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


def accelerator() -> str | None:
    """Return the type of torch's accelerator; None without one or before torch 2.6."""
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
    """Refuse float32 or float64 gradients that the state, made for another dtype, cannot add."""
    if gradient.dtype in TORCH.values() and gradient.dtype != TORCH[spec.accumulator]:
        raise UnsupportedInput(
            f"tensor {spec.key!r} is {dtype_of(gradient)} now, and was {spec.dtype} when the "
            "compressor was made: convert the model first, and then make the compressor"
        )


def spec_of(name: str, parameter: torch.Tensor) -> TensorSpec:
    """Return the properties of a parameter that ranks must agree on."""
    spec = TensorSpec(name, tuple(parameter.shape), dtype_of(parameter))
    check_device(name, parameter)
    return spec


def dtype_of(tensor: torch.Tensor) -> str:
    """Return a dtype's name, the same in all frameworks."""
    return str(tensor.dtype).removeprefix("torch.")


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(fetch(tensor.detach())) if is_on_device(tensor) else tensor


def own_memory(gradient: torch.Tensor) -> np.ndarray | None:
    """Return the gradient's own memory, flat, if the result can be written there; else None."""
    if gradient.is_cpu and gradient.dtype in TORCH.values() and gradient.is_contiguous():
        plain = gradient.detach() if gradient.requires_grad else gradient
        memory: np.ndarray = plain.numpy().reshape(-1)
        return memory
    return None


def flatten(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """Return the gradient as a flat array of the accumulator's dtype, in logical order: a view of a
    contiguous float32 or float64 gradient, else a copy."""
    memory = own_memory(gradient)
    if memory is not None:
        return memory
    flat: np.ndarray = to_host(_wide(gradient, spec)).numpy()
    return flat


def _wide(gradient: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    return gradient.detach().to(TORCH[spec.accumulator]).contiguous().view(-1)


def unflatten(flat: np.ndarray, gradient: torch.Tensor) -> torch.Tensor:
    """Return a flat array as a tensor of the gradient's shape, dtype, memory layout and device."""
    if isinstance(flat, DeviceVector):
        return like(flat.tensor.view(gradient.shape), gradient)
    if write_back(flat, gradient):
        return gradient
    return like(torch.from_numpy(flat).view(gradient.shape), gradient)


def write_back(flat: np.ndarray, gradient: torch.Tensor) -> bool:
    """Write the result into a device gradient's own memory if it fits, to save an allocation."""
    kind = torch.float64 if flat.dtype == np.float64 else torch.float32
    if not is_on_device(gradient) or gradient.dtype != kind or not gradient.is_contiguous():
        return False
    gradient.detach().view(-1).copy_(upload(flat, gradient.device))
    return True


def like(dense: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return a tensor in the gradient's dtype, memory layout and device, if possible without a
    copy."""
    there = dense
    if gradient.device != dense.device:
        there = upload(dense.numpy(), gradient.device)
    if gradient.is_sparse or gradient.is_contiguous():
        return there.to(gradient.dtype)
    return torch.empty_like(gradient).copy_(there)


def vector_of(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """Return the gradient as a flat vector of its device, if possible in its own memory."""
    return cast(np.ndarray, DeviceVector(_wide(gradient, spec)))


def late_gradient(gradient: torch.Tensor, spec: TensorSpec) -> Late:
    """Begin to copy a device's gradient, flat, to the host."""
    return Copy(_wide(gradient, spec))


def lies_in(vector: object, gradient: torch.Tensor) -> bool:
    assert isinstance(vector, DeviceVector)
    there = vector.tensor
    return bool(there.dtype == gradient.dtype and there.data_ptr() == gradient.data_ptr())


class TorchDevices:
    """The tensors' devices by position, None for the host. Implements ``step.records.Devices``."""

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

    def send(self, answers: Sequence[Answer], late: Sequence[Late]) -> Callable[[], bool]:
        # An answer that was waited for has arrived already.
        coming: list[object] = [
            each for each in answers if isinstance(each, Coming) and not each.is_begun
        ]
        copies = cast("Sequence[Copy]", late)  # ``late_gradient`` has begun them
        return Delivery(cast("list[Coming[object]]", coming), copies).is_here

    def together(self, walks: Sequence[Callable[[], None]]) -> None:
        run_together(walks, fetch_all)
