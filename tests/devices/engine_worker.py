"""Checks the engine torch on the pretend device. It runs in a separate process, because the device
changes torch, and mutants may crash.

``engine_worker.py conformance`` runs the suite, and ``... mutant NAME`` a part of it on a broken
engine. ``... default`` runs this part after the program has made the device torch's default.
``... waits`` prints how often every kernel waits, and its forbidden operations. ``... streams``
prints whether a bucket whose tensors come from two streams gives the right results without a wait.
"""

import json
import sys

import numpy as np
import torch
from conformance import kernel_checks
from conformance.changes import Wrapped
from devices import pretend
from devices.engine_checks import VectorsOnDevice, check_all, check_vectors, result_of
from devices.forbidden import Watch
from devices.mutants import break_engine
from distributions import draw

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.engines import resolve_engine
from hvd_sparse.kernels.optimizers import Adam, AdamStep, Momentum, NewtonSchulz
from hvd_sparse.kernels.torch import KernelsByPlace, passes
from hvd_sparse.kernels.torch.passes import Pass, deliver
from hvd_sparse.kernels.torch.vector import DeviceVector, upload
from hvd_sparse.types import Selection

# -- waits ----------------------------------------------------------------------------------------


def calls(numel):
    x, gradient = (draw(name, numel, "float32") for name in ("laplace", "normal"))
    out = np.empty_like(x)
    some = np.arange(0, numel, 9, dtype=np.uint32)
    chosen = Selection(some, x[some], numel)
    momentum = Momentum(x, out.copy(), 0.9, True)
    adam = Adam(x, abs(x), out.copy(), out.copy(), AdamStep(0.9, 0.999, 1e-8, 1))
    return {
        "moments": (x,),
        "mean_and_std": (x,),
        "tail": (x, 1.0),
        "digit_counts": (x, 24, 0),
        "chunk_norms": (x, 64),
        "take_at_least": (x, 1.0),
        "count_and_take": (x, 1.0, numel),
        "take_at_most": (x, 1.0, numel),
        "take_largest": (x, 20),
        "accumulate": (gradient, x, out),
        "accumulate_and_take": (gradient, x.copy(), out, Aim(1.0, numel), momentum),
        "trim": (chosen, 5, out),
        "directed": (gradient, adam),
        "orthogonalized": (x, NewtonSchulz((numel // 10, 10))),
        "assemble": (out, [chosen, chosen]),
    }


class Counted(Wrapped):
    """Kernels that store for every call the number of waits and the forbidden operations."""

    def __init__(self, kernels):
        super().__init__(kernels, self._count)
        self.waits, self.forbidden = {}, {}

    def _count(self, name, kernel, values):
        before, watch = pretend.waits(), Watch()
        with watch:
            result = result_of(kernel(*values))
        self.waits[name] = pretend.waits() - before
        self.forbidden[name] = watch.found
        return result


def count_waits(device):
    counted = Counted(resolve_engine("torch"))
    kernels = VectorsOnDevice(counted, device)
    for name, values in calls(1000).items():
        getattr(kernels, name)(*values)
    begin_and_add_up(counted, device)
    return {"waits": counted.waits, "forbidden": counted.forbidden}


def begin_and_add_up(kernels, device):
    def vector():
        return torch.zeros(1000, device=device)

    aims = Aim(1.0, 50), None
    kernels.begin([Pass(vector(), vector(), vector(), aim) for aim in aims])
    chosen = calls(1000)["trim"][0]
    kernels.assemble_together([(DeviceVector(vector()), [chosen, chosen], 0.5) for _ in range(2)])


# -- streams --------------------------------------------------------------------------------------


def bucket_of_two_streams(device):
    """Begin passes in one stream over gradients that come from two streams; return whether both
    results are right."""
    by_place = KernelsByPlace(reference, resolve_engine("torch"))
    first, second = torch.Stream(device), torch.Stream(device)
    answers, sums = [], []
    for stream, value in ((first, 1.0), (second, 2.0)):
        torch.accelerator.set_stream(stream)
        residual, out = (DeviceVector(torch.zeros(100, device=device)) for _ in range(2))
        # Last: whatever a stream is given next finds it there.
        gradient = DeviceVector(upload(np.full(100, value, np.float32), device))
        answers.append(by_place.accumulate(gradient, residual, out))
        sums.append(100 * value)
    deliver(answers)
    return [each.abs_sum for each in answers] == sums


def main(task, *names):
    torch.set_num_threads(1)
    device = pretend.load()
    pretend.late(True)
    kernels = VectorsOnDevice(resolve_engine("torch"), device)
    if task == "waits":
        print(json.dumps(count_waits(device)))
        return
    if task == "streams":
        followed = bucket_of_two_streams(device)
        passes.follow = lambda stream: None
        print(json.dumps([followed, bucket_of_two_streams(device)]))
        return
    if task == "default":
        torch.set_default_device(device)
    if task == "conformance":
        check_all(kernels)
    else:
        for name in names:
            break_engine(name)
        check_vectors(kernels, kernel_checks.vectors("float32")[3:30:9])
    assert not pretend.reused(), "a pinned buffer was changed before the device had read it"
    print(json.dumps(pretend.waits()))


if __name__ == "__main__":
    main(*sys.argv[1:])
