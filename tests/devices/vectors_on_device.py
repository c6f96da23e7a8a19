"""Kernels of vectors on a device, for checks that are written for arrays."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.kernels.torch.vector import DeviceVector

MOMENTS = {"mean", "square", "out_mean", "out_square", "velocity", "out_velocity"}
VECTORS = {"x", "gradient", "residual", "out", "accumulated"} | MOMENTS
"""The parameters of kernels that are vectors; everything else is the host's."""


class VectorsOnDevice:
    """Kernels whose vectors are carried to a device before every call, and back behind it.

    All of them come back, those that were only to be read too: who writes to its input is seen.
    """

    def __init__(self, kernels: Any, device: torch.device) -> None:
        self._kernels, self._device = kernels, device

    def __getattr__(self, name: str) -> Callable[..., Any]:
        kernel = getattr(self._kernels, name)
        stated = inspect.signature(getattr(Kernels, name)).parameters
        names = list(stated)[1:]

        @functools.wraps(kernel)
        def call(*values: Any) -> Any:
            carried: dict[int, tuple[np.ndarray, DeviceVector]] = {}
            given = [
                self._carry(value, carried)
                if parameter in VECTORS and isinstance(value, np.ndarray) and name not in PACKERS
                else value
                for parameter, value in zip(names, values)
            ]
            result = kernel(*given)
            for array, vector in carried.values():
                if array.flags.writeable:
                    array[...] = vector.tensor.cpu().numpy()
            return result

        return call

    def _carry(self, array: np.ndarray, carried: dict[int, Any]) -> DeviceVector:
        """Return the array's entries on the device; of one array, one vector."""
        if id(array) not in carried:
            tensor = torch.from_numpy(array.copy()).to(self._device)
            carried[id(array)] = array, DeviceVector(tensor)
        vector: DeviceVector = carried[id(array)][1]
        return vector


PACKERS = {"half_codes", "half_values", "brain_codes", "brain_values"}
"""Kernels of the host's lists, though one of their parameters is called ``out``."""
