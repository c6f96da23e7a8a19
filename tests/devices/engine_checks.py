"""The conformance suite in one process, for kernels whose vectors are copied to a device."""

import functools
import inspect

import numpy as np
import torch
from conformance import fused_checks, hostile, kernel_checks
from conformance.statistics_checks import check_take_bins

from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.kernels.optimizers import Adam, Decay, Momentum
from hvd_sparse.kernels.torch.passes import Coming
from hvd_sparse.kernels.torch.vector import DeviceVector

ON_A_DEVICE = [check for check in fused_checks.OF_A_VECTOR if check is not check_take_bins]
"""Checks on a device. ``take_bins`` is left out, because the selector that uses it needs the
host."""


def check_all(kernels):
    """Run the conformance suite on all vectors. With float64, which runs the same code, only a
    third of them are used."""
    for dtype, every in (("float32", 1), ("float64", 3)):
        hostile.check_beside_the_reference(kernels, dtype)
        check_vectors(kernels, kernel_checks.vectors(dtype)[::every])
    kernel_checks.check_threshold_is_rounded(kernels)
    kernel_checks.check_sum_is_wide(kernels)


def check_vectors(kernels, vectors):
    for x in vectors:
        for check in ON_A_DEVICE:
            fused_checks.put(check, kernels, x)


VECTORS = {"x", "gradient", "residual", "out", "accumulated"}
"""Parameters of kernels that are vectors. Of the other parameters, only an optimizer's operands
contain vectors."""


def carried(parameter, value, carry):
    if isinstance(value, (Decay, Momentum, Adam)):
        return type(value)(*(carry(x) if isinstance(x, np.ndarray) else x for x in value))
    is_vector = parameter in VECTORS and isinstance(value, np.ndarray)
    return carry(value) if is_vector else value


def result_of(answer):
    """Return a kernel's result. For a pass over a device's vectors, this requests the result."""
    return answer.result() if isinstance(answer, Coming) else answer


class VectorsOnDevice:
    """Kernels whose vectors are copied to a device before every call, and copied back afterwards.

    All vectors are copied back, also inputs, so that a test notices if a kernel writes to an input.
    """

    def __init__(self, kernels, device):
        self._kernels, self._device = kernels, device

    def __getattr__(self, name):
        kernel = getattr(self._kernels, name)
        stated = inspect.signature(getattr(Kernels, name)).parameters
        names = list(stated)[1:]

        @functools.wraps(kernel)
        def call(*values):
            known = {}
            given = (
                carried(parameter, value, lambda array: self._carry(array, known))
                for parameter, value in zip(names, values)
            )
            result = result_of(kernel(*given))
            for array, vector in known.values():
                if array.flags.writeable:
                    array[...] = vector.tensor.cpu().numpy()
            return result.copy() if isinstance(result, DeviceVector) else result

        return call

    def _carry(self, array, known):
        if id(array) not in known:
            tensor = torch.from_numpy(array.copy()).to(self._device)
            known[id(array)] = array, DeviceVector(tensor)
        vector = known[id(array)][1]
        return vector
