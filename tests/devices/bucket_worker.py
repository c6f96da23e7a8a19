"""Compares steps in which an engine processes all tensors of a bucket at once with steps of the
numpy engine.

``bucket_worker.py ENGINE``, where ENGINE is ``torch``, or ``triton`` in Triton's interpreter.
Vectors of the CPU stand for vectors of a device. Prints as JSON, for each case, whether the bits
are the same, and the number of launches for a bucket if the engine counts them.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import json
import sys
import threading
from contextlib import nullcontext

import numpy as np
import torch
from devices.step_worker import CASES, SCALES, TOPK, Rank, steps
from frontends._method_cases import SHAPES

from hvd_sparse.collectives.local import LocalWorld
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.torch import KernelsByPlace, TorchKernels

CPU = torch.device("cpu")
METHODS = {
    **CASES,
    **{
        name: {"selector": {"id": name, **options}}
        for name, options in {
            "ldte_bs": {"density": 0.1},
            "ldte": {"density": 0.1},
            "fixed_threshold": {"threshold": 1.5},
            "gaussian_k": {"density": 0.1},
            "sidco": {"density": 0.1},
            "radix_select": {"density": 0.1},
            "redsync_trimmed": {"density": 0.1},
            "redsync_search": {"density": 0.1},
            "stc": {"density": 0.1},
        }.items()
    },
}
INTERPRETED = ("topk", "ldte_bs", "ldte", "gaussian_k", "fixed_threshold", "momentum")
"""Cases that run in Triton's interpreter, which needs seconds for each."""
ENGINE = ""
begun = []
"""Number of tensors in every group of passes that the engine got."""
added = []
"""Number of tensors, and of launches, of every group of sums."""
put_back = []
"""For every tensor, the number of entries that its pass had taken but that were not selected; they
return to the residual with the sums."""
one_at_a_time = threading.RLock()
"""Lock for Triton's interpreter, which all threads share. Threads are ranks here."""


def kernels_of(engine):
    if engine == "torch":
        kernels = TorchKernels(reference)
    else:
        from hvd_sparse.kernels.triton import TritonKernels

        kernels = TritonKernels(reference, block=256)  # several programs a tensor
    own, assemble = kernels.begin, kernels.assemble_together

    def begin(passes):
        with one_at_a_time:
            begun.append(len(passes))
            return own(passes)

    def assembled(sums, surplus=()):
        with one_at_a_time:
            with counting() as counted:
                assemble(sums, surplus)
            put_back.extend(entries.count for _, entries in surplus)
            added.append((len(sums), counted.launches if counted is not None else 0))

    kernels.begin, kernels.assemble_together = begin, assembled
    return KernelsByPlace(reference, kernels)


def counting():
    if ENGINE == "torch":
        return nullcontext()
    from devices.transfers import Transfers

    return Transfers()


def mixed():
    if ENGINE == "torch":
        return nullcontext()
    from devices.triton_worker import shuffled

    return shuffled()


def launches(method):
    from devices.transfers import Transfers

    def run(collective):
        kernels = kernels_of(ENGINE)
        rank = Rank({**method, "groups": 1}, collective, CPU, kernels)
        for position in range(len(SHAPES)):
            rank.step.transactions.state_of(position)  # whose memory is made of zeros, once
        found = {"passes": [], "sums": [], "all else": [], "put back": []}
        for number in range(4):
            gradients = [
                rank.place(i, np.full(np.prod(shape), 1.0 + number, np.float32) * _ramp(shape))
                for i, shape in enumerate(SHAPES)
            ]
            begun.clear()
            added.clear()
            put_back.clear()
            sent = []
            with Transfers() as counted:
                for position, vector in enumerate(gradients):
                    wire, ticket = rank.driver.compress(position, vector)
                    ticket.out = vector
                    sent.append((wire, ticket))
            found["passes"].append(counted.launches)
            reduced = [
                collective.allreduce(wire, f"carrier {position}").wait(None)
                for position, (wire, _) in enumerate(sent)
            ]
            with Transfers(of_torch=True) as counted:
                for each, (_, ticket) in zip(reduced, sent):
                    rank.driver.decompress(each, ticket)
            found["sums"].append(sum(own for _, own in added))
            found["put back"].append(sum(count > 0 for count in put_back))
            found["all else"].append(counted.launches - found["sums"][-1])
            assert begun == [tensors for tensors, _ in added] == [len(SHAPES)], "one group a bucket"
        return found

    return LocalWorld(1).run(run)[0]


def _ramp(shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32)


def main(engine):
    global ENGINE
    ENGINE = engine
    torch.set_num_threads(1)
    if engine == "triton":
        from devices.interpreter import change_the_language_once

        change_the_language_once()
    same = {}
    is_slow = ENGINE == "triton"
    with mixed():
        for name, options in METHODS.items():
            if is_slow and name not in INTERPRETED:
                continue
            for scale in SCALES[: 1 if is_slow else 2]:
                ours = steps(options, CPU, scale, kernels=kernels_of(ENGINE))
                same[f"{name} at scale {scale:g}"] = ours == steps(
                    options, None, scale, kernels=reference
                )
        # One tensor is averaged, and was added up at the first one's turn as if it were not.
        ours = steps(TOPK, CPU, 1.0, averaged=1, kernels=kernels_of(ENGINE))
        same["another factor"] = ours == steps(TOPK, None, 1.0, averaged=1, kernels=reference)
        for what in ("propagate", "raise")[: 1 if is_slow else 2]:
            options = {**TOPK, "on_nonfinite": what}
            ours = steps(options, CPU, 1.0, is_spoilt=True, kernels=kernels_of(ENGINE))
            theirs = steps(options, None, 1.0, is_spoilt=True, kernels=reference)
            same[f"NaN, {what}"] = ours == theirs
        told = {"same": same, "most together": [max(begun), max(added)[0]]}
        if is_slow:
            for name in ("ldte_bs", "topk"):
                told[f"launches, {name}"] = launches(METHODS[name])
    print(json.dumps(told))


if __name__ == "__main__":
    main(*sys.argv[1:])
