"""Launches of the engine triton that do nothing, on the pretend device: every wait shows."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from devices import pretend
from devices.forbidden import Watch

from hvd_sparse.kernels import reference
from hvd_sparse.kernels import triton as launches
from hvd_sparse.kernels.contract import Aim, Brought
from hvd_sparse.kernels.torch.passes import Pass
from hvd_sparse.kernels.torch.vector import DeviceVector
from hvd_sparse.kernels.triton import TritonKernels
from hvd_sparse.types import Selection

NUMEL = 1000
AIMS = {
    "takes": Aim(1.0, 50),
    "looks": None,
    "brings moments": Aim(1.0, 50, ("moments",)),
    "brings statistics": Aim(1.0, 50, Brought._fields),
}


class Launches:
    """The code for the device, which here notes its launches and does nothing."""

    def __init__(self, device: torch.device) -> None:
        self.names: list[str] = []
        self._device = device

    def __getattr__(self, name: str) -> dict[Any, Callable[..., None]]:
        launches = self

        class Grid(dict[Any, Callable[..., None]]):
            def __missing__(self, programs: Any) -> Callable[..., None]:
                return launches.launch(name)

        return Grid()

    def launch(self, name: str) -> Callable[..., None]:
        def launched(*values: Any, **_: Any) -> None:
            tensors = [each for each in values if isinstance(each, torch.Tensor)]
            assert tensors and all(each.device == self._device for each in tensors), name
            self.names.append(name)

        return launched


def seen(work: Callable[[], Any], own: Launches) -> dict[str, Any]:
    own.names, before = [], pretend.waits()
    with Watch() as watch:
        work()
    return {"waits": pretend.waits() - before, "forbidden": watch.found, "launches": own.names}


def main() -> None:
    device = pretend.load()
    own = launches.device_code = Launches(device)
    launches.on = lambda _: contextlib.nullcontext()
    kernels, found = TritonKernels(reference, block=256), {}

    def vector(dtype: torch.dtype = torch.float32) -> torch.Tensor:
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

    def planted() -> None:
        kernels.begin(passes[:1])
        vector().sum().item()

    print(json.dumps({"found": found, "planted": seen(planted, own)}))


if __name__ == "__main__":
    main()
