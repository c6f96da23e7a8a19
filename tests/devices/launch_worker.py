"""Counts the waits of the engine triton on the pretend device, with launches that do nothing."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import contextlib
import json

import numpy as np
import torch
from devices import pretend
from devices.forbidden import Watch

from hvd_sparse.kernels import reference
from hvd_sparse.kernels import triton as launches
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.torch.passes import Pass
from hvd_sparse.kernels.torch.vector import DeviceVector
from hvd_sparse.kernels.triton import TritonKernels
from hvd_sparse.types import Selection

NUMEL = 1000
AIMS = {
    "takes": Aim(1.0, 50),
    "looks": None,
}


class Launches:
    """Stands for the device code: stores the names of the launches and does nothing."""

    def __init__(self, device):
        self.names = []
        self._device = device

    def __getattr__(self, name):
        launches = self

        class Grid(dict):
            def __missing__(self, programs):
                return launches.launch(name)

        return Grid()

    def launch(self, name):
        def launched(*values, **_):
            tensors = [each for each in values if isinstance(each, torch.Tensor)]
            assert tensors and all(each.device == self._device for each in tensors), name
            self.names.append(name)

        return launched


def seen(work, own):
    own.names, before = [], pretend.waits()
    with Watch() as watch:
        work()
    return {"waits": pretend.waits() - before, "forbidden": watch.found, "launches": own.names}


def main():
    device = pretend.load()
    own = launches.device_code = Launches(device)
    launches.on = lambda _: contextlib.nullcontext()
    kernels, found = TritonKernels(reference, block=256), {}

    def vector(dtype=torch.float32):
        return torch.zeros(NUMEL, dtype=dtype, device=device)

    for dtype in (torch.float32, torch.float64):
        passes = [Pass(*(vector(dtype) for _ in range(3)), aim) for aim in AIMS.values()]
        for what, one in zip(AIMS, passes):
            found[f"{what}, {dtype}"] = seen(lambda one=one: kernels.begin([one]), own)
        found[f"a bucket, {dtype}"] = seen(lambda passes=passes: kernels.begin(passes), own)
    some = np.arange(0, NUMEL, 9, dtype=np.uint32)
    part = Selection(some, np.ones(some.size, np.float32), NUMEL)
    sums = [(DeviceVector(vector()), [part, part], 0.5) for _ in range(2)]
    surplus = [(DeviceVector(vector()), part)]
    found["a bucket's sums"] = seen(lambda: kernels.assemble_together(sums, surplus), own)

    def planted():
        kernels.begin(passes[:1])
        vector().sum().item()

    print(json.dumps({"found": found, "planted": seen(planted, own)}))


if __name__ == "__main__":
    main()
