"""Gradients that stay on their device: the vectors there, and the way of answers to the host."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import DTypeLike

from hvd_sparse.kernels.contract import Zeros
from hvd_sparse.kernels.torch.coming import Coming
from hvd_sparse.kernels.torch.coming import Delivery as TorchDelivery
from hvd_sparse.kernels.torch.together import run_together
from hvd_sparse.kernels.torch.vector import Copy, DeviceVector, fetch_all
from hvd_sparse.step.devices.contract import Answer, Delivery, Late
from hvd_sparse.types import TensorSpec

TORCH = {np.dtype(np.float32): torch.float32, np.dtype(np.float64): torch.float64}


class TorchDevices:
    """A ``step.devices.contract.Devices``: the devices of a compressor's parameters.

    Parameters
    ----------
    devices : by position; None for a tensor whose vectors are the host's
    """

    def __init__(self, devices: Sequence[torch.device | None]) -> None:
        self._devices = devices

    def zeros_of(self, position: int) -> Zeros | None:
        device = self._devices[position]
        if device is None:
            return None

        def zeros(numel: int, dtype: DTypeLike) -> np.ndarray:
            return as_vector(torch.zeros(numel, dtype=TORCH[np.dtype(dtype)], device=device))

        return zeros

    def send(self, answers: Sequence[Answer], late: Sequence[Late]) -> Delivery:
        # What the kernels of devices give; an answer that was waited for has come already.
        coming: list[object] = [
            each for each in answers if isinstance(each, Coming) and not each.is_begun
        ]
        return TorchDelivery(cast("list[Coming[object]]", coming), late)

    def together(self, walks: Sequence[Callable[[], None]]) -> None:
        run_together(walks, fetch_all)


def vector_of(gradient: torch.Tensor, spec: TensorSpec) -> np.ndarray:
    """Return the gradient as a vector of its device, of the accumulator's dtype, in logical order.

    It lies in the gradient's own memory if it can; else in memory made for it.  Nothing is waited
    for.
    """
    wide = gradient.detach().to(TORCH[spec.accumulator])
    return as_vector(wide.contiguous().view(-1))


def late_gradient(gradient: torch.Tensor, spec: TensorSpec) -> Late:
    """Return a device's gradient as it comes to the host, flat, of the accumulator's dtype, in
    logical order."""
    return Copy(gradient.detach().to(TORCH[spec.accumulator]).contiguous().view(-1))


def as_vector(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as the core sees vectors: as if it were an array.

    Parameters
    ----------
    tensor : 1-D, contiguous, float32 or float64
    """
    return cast(np.ndarray, DeviceVector(tensor))


def lies_in(vector: object, gradient: torch.Tensor) -> bool:
    """Tell whether a vector lies in the memory of a gradient on a device."""
    assert isinstance(vector, DeviceVector)
    there = vector.tensor
    return bool(there.dtype == gradient.dtype and there.data_ptr() == gradient.data_ptr())
