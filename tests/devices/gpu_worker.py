"""Tasks of ``scripts/gpu-check`` on a real GPU. Each task runs in a separate process.

``gpu_worker.py conformance ENGINE``, ``gpu_worker.py waits ENGINE`` or ``gpu_worker.py times ENGINE
ENTRIES...``. The last one also times the library of ``HVD_SPARSE_CUB_TOPK`` if this variable is
set. With ``HVD_SPARSE_TEST_DEVICE=cpu``, the tasks run without a GPU, to test this program.
"""

import contextlib
import json
import os
import sys
import time
from functools import partial

import torch
from conformance.changes import Wrapped
from devices.engine_checks import VectorsOnDevice, check_all
from devices.engine_worker import calls
from devices.gpu_check.cub import CubTopK

from benchmarks._peers import PEERS, Peer
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.torch.passes import Pass
from hvd_sparse.kernels.torch.vector import DeviceVector, fetch
from hvd_sparse.registry import ENGINES

DEVICE = torch.device(os.environ.get("HVD_SPARSE_TEST_DEVICE", "cuda"))
DENSITIES = (0.0001, 0.001, 0.01, 0.05)
NO_WAIT = ("directed", "assemble")
ENTRIES = 100_000 if DEVICE.type == "cuda" else 10_000
LEAST_S = 0.2 if DEVICE.type == "cuda" else 0.01
"""Seconds for which each measured call is repeated. Without a GPU, the times do not matter."""


@contextlib.contextmanager
def strict():
    """While the block runs, torch raises an error at every wait that is not requested."""
    if DEVICE.type != "cuda":  # nothing to wait for
        yield
        return
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def strictly(name, kernel, values):
    with strict():
        return kernel(*values)


def check_waits(kernels):
    """Call the kernels that must not wait; torch raises an error if one does."""
    watched = VectorsOnDevice(Wrapped(kernels, strictly), DEVICE)
    given = calls(ENTRIES)
    for name in NO_WAIT:
        getattr(watched, name)(*given[name])
    check_bucket(kernels, given["trim"][0])


def check_bucket(kernels, chosen):
    def vector():
        return torch.ones(ENTRIES, device=DEVICE)

    capacity = ENTRIES // 2
    aims = (Aim(1.0, capacity), None, Aim(3.0, capacity))
    passes = [Pass(vector(), vector(), vector(), aim) for aim in aims]
    sums = [(DeviceVector(vector()), [chosen, chosen], 0.5) for _ in range(2)]
    surplus = [(DeviceVector(vector()), chosen)]
    for _ in range(2):  # the first time memory is made, and code is compiled
        with strict():
            answers = kernels.begin(passes)
            kernels.assemble_together(sums, surplus)
    few, moments, none = answers.read(fetch(answers.words))
    assert few.taken is None and moments.nonzeros == ENTRIES and none.taken.count == 0


def milliseconds(work):
    work()
    done, count = _finished(), 0
    while time.perf_counter() - done < LEAST_S:
        work()
        count += 1
    return 1000 * (_finished() - done) / count


def _finished():
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def times(kernels, entries):
    """Return the times of selecting at every density, of one addition, and of the baselines."""
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
                "ours": milliseconds(
                    lambda aim=aim: kernels.accumulate_and_take(*vectors, aim).result()
                ),
                **{
                    name: milliseconds(partial(peer_of(rule, gradient, density).step, gradient))
                    for name, rule in PEERS.items()
                },
                **beside_cub(residual, gradient, count, cut),
            }
        )
    return lines


def beside_cub(residual, gradient, count, cut):
    """Return the times of an addition and of ``cub::DeviceTopK``, if the latter was compiled."""
    library = os.environ.get("HVD_SPARSE_CUB_TOPK")
    if not library:
        return {}
    cub = CubTopK(library, gradient, count)
    cub.run()
    found = gradient[cub.places.long()].abs()
    assert torch.equal(found, cub.magnitudes) and float(found.min()) == cut

    def both():
        residual.add_(gradient, alpha=0.0)
        cub.run()

    return {"add_ and cub::DeviceTopK": milliseconds(both)}


def peer_of(rule, gradient, density):
    return Peer(rule(), torch.zeros_like(gradient), density)


def main(task, engine, *sizes):
    kernels = ENGINES.create(engine).kernels
    if engine == "triton" and DEVICE.type == "cpu":  # by its interpreter
        from devices.interpreter import change_the_language_once

        change_the_language_once()
    if task == "conformance":
        check_all(VectorsOnDevice(kernels, DEVICE))
    elif task == "waits":
        check_waits(kernels)
    else:
        print(json.dumps([line for size in sizes for line in times(kernels, int(size))]))


if __name__ == "__main__":
    main(*sys.argv[1:])
