"""Kernels of compressors that have tensors on a device: each vector is worked on where it lies."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hvd_sparse.kernels.contract import Kernels, Sums, Surplus
from hvd_sparse.kernels.rows import rows_of
from hvd_sparse.kernels.torch.vector import DeviceVector

LATE = {
    "accumulate": "later_accumulate",
    "accumulate_and_take": "later_accumulate_and_take",
    "push_momentum_and_take": "later_push_momentum_and_take",
    "push_adam_and_take": "later_push_adam_and_take",
}
"""The passes of a step: begun once a bucket is complete, all of its tensors' together."""

Kernel = Callable[..., object]


class KernelsByPlace:
    """Kernels of two engines: one for vectors on a device, one for arrays of the host.

    Parameters
    ----------
    host : for arrays, and for all that is the host's anyway
    device : for vectors on a device
    """

    def __init__(self, host: Kernels, device: Kernels) -> None:
        self._host, self._device = host, device
        rows = rows_of(host)
        if rows is not None:
            self.send_rows, self.sum_rows = rows.send_rows, rows.sum_rows

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        """Write the sums of vectors where each lies, and put back what is surplus."""
        for kernels, is_device in ((self._host, False), (self._device, True)):
            there = [each for each in sums if isinstance(each[0], np.ndarray) is not is_device]
            back = [each for each in surplus if isinstance(each[0], np.ndarray) is not is_device]
            if there or back:
                kernels.assemble_together(there, back)

    def __getattr__(self, name: str) -> Kernel:
        on_host: Kernel = getattr(self._host, name)
        on_device: Kernel = getattr(self._device, LATE.get(name, name))

        def kernel(*values: object) -> object:
            is_on_device = any(type(value) is DeviceVector for value in values)
            return on_device(*values) if is_on_device else on_host(*values)

        setattr(self, name, kernel)
        return kernel
