"""What ``scripts/gpu-check`` asks of a real GPU, each task in a process of its own.

``gpu_worker.py conformance ENGINE``, ``gpu_worker.py waits ENGINE`` or ``gpu_worker.py times
ENGINE ENTRIES...``, with the library of ``HVD_SPARSE_CUB_TOPK`` if there is one.
``HVD_SPARSE_TEST_DEVICE=cpu`` lets it run where there is none, to see that it works.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from devices.engine_checks import check_all
from devices.engine_worker import calls
from devices.vectors_on_device import VectorsOnDevice

from benchmarks._cub import CubTopK
from benchmarks._peers import PEERS, Peer, Rule
from hvd_sparse.core.kernels.contract import Aim
from hvd_sparse.core.kernels.torch.vector import DeviceVector
from hvd_sparse.registry import ENGINES

DEVICE = torch.device(os.environ.get("HVD_SPARSE_TEST_DEVICE", "cuda"))
DENSITIES = (0.0001, 0.001, 0.01, 0.05)
NO_WAIT = ("compensate", "push_momentum", "clear", "restore", "assemble", "scatter_add")
LEAST_S = 0.2
"""Seconds for which each work is repeated."""


class Strict:
    """Kernels under which torch raises where one waits behind the program's back."""

    def __init__(self, kernels: Any) -> None:
        self._kernels = kernels

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*values: Any) -> Any:
            torch.cuda.set_sync_debug_mode("error")
            try:
                return getattr(self._kernels, name)(*values)
            finally:
                torch.cuda.set_sync_debug_mode("default")

        return call


def check_waits(kernels: Any) -> None:
    """Call the kernels that must not wait, with torch's own watch on."""
    strict = VectorsOnDevice(Strict(kernels), DEVICE)
    for name, values in calls(100_000).items():
        if name in NO_WAIT:
            getattr(strict, name)(*values)


def milliseconds(work: Callable[[], Any]) -> float:
    """Return the mean time of a work, the device's included."""
    work()
    done, count = _finished(), 0
    while time.perf_counter() - done < LEAST_S:
        work()
        count += 1
    return 1000 * (_finished() - done) / count


def _finished() -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def times(kernels: Any, entries: int) -> list[dict[str, float]]:
    """Return what selecting costs at every density, beside one addition and the peers' rules."""
    draw = torch.Generator(DEVICE).manual_seed(7)
    gradient = torch.randn(entries, generator=draw, device=DEVICE)
    residual, out = torch.zeros_like(gradient), torch.zeros_like(gradient)
    vectors = [DeviceVector(each) for each in (gradient, residual, out)]
    addition = milliseconds(lambda: residual.add_(gradient, alpha=0.0))
    lines = []
    for density in DENSITIES:
        count = max(1, int(density * entries))
        cut = float(gradient.abs().kthvalue(entries - count + 1).values)
        aim = Aim(cut, 2 * count)
        lines.append(
            {
                "entries": entries,
                "density": density,
                "add_": addition,
                "ours": milliseconds(lambda aim=aim: kernels.accumulate_and_take(*vectors, aim)),
                **{
                    name: milliseconds(partial(peer_of(rule, gradient, density).step, gradient))
                    for name, rule in PEERS.items()
                },
                **beside_cub(residual, gradient, count, cut),
            }
        )
    return lines


def beside_cub(
    residual: torch.Tensor, gradient: torch.Tensor, count: int, cut: float
) -> dict[str, float]:
    """Return what one addition and ``cub::DeviceTopK`` cost, if it was compiled; first, whether it
    finds what it must."""
    library = os.environ.get("HVD_SPARSE_CUB_TOPK")
    if not library:
        return {}
    cub = CubTopK(library, gradient, count)
    cub.run()
    found = gradient[cub.places.long()].abs()
    assert torch.equal(found, cub.magnitudes) and float(found.min()) == cut

    def both() -> None:
        residual.add_(gradient, alpha=0.0)
        cub.run()

    return {"add_ and cub::DeviceTopK": milliseconds(both)}


def peer_of(rule: Callable[[], Rule], gradient: torch.Tensor, density: float) -> Peer:
    """Return a rule with error feedback, on the gradient's device."""
    return Peer(rule(), torch.zeros_like(gradient), density)


def main(task: str, engine: str, *sizes: str) -> None:
    kernels = ENGINES.create(engine).kernels
    if task == "conformance":
        check_all(VectorsOnDevice(kernels, DEVICE))
    elif task == "waits":
        check_waits(kernels)
    else:
        print(json.dumps([line for size in sizes for line in times(kernels, int(size))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
