"""Compares steps in which Triton's interpreter processes all tensors of a bucket at once with steps
of the numpy engine.

Vectors of the CPU stand for vectors of a device. Prints as JSON, for each case, whether the bits
are the same, and the number of launches for a bucket.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import json
import threading

import numpy as np
import torch
import worlds
from devices.interpreter import change_the_language_once
from devices.step_worker import CASES, TOPK, Rank, steps
from devices.transfers import Transfers
from devices.triton_worker import shuffled
from frontends._method_cases import SHAPES

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.torch import KernelsByPlace
from hvd_sparse.kernels.triton import TritonKernels

CPU = torch.device("cpu")
METHODS = ("topk", "ldte_bs", "ldte", "gaussian_k", "fixed_threshold", "momentum")
"""Cases to run. The interpreter needs seconds for each."""
begun = []
"""Number of tensors in every group of passes that the engine got."""
added = []
"""Number of tensors, and of launches, of every group of sums."""
put_back = []
"""For every tensor, the number of entries that its pass had taken but that were not selected; they
return to the residual with the sums."""
one_at_a_time = threading.RLock()
"""Lock for Triton's interpreter, which all threads share. Threads are ranks here."""


def make_kernels():
    kernels = TritonKernels(reference, block=256)  # several programs a tensor
    own, assemble = kernels.begin, kernels.assemble_together

    def begin(passes):
        with one_at_a_time:
            begun.append(len(passes))
            return own(passes)

    def assembled(sums, surplus=()):
        with one_at_a_time:
            with Transfers() as counted:
                assemble(sums, surplus)
            put_back.extend(entries.count for _, entries in surplus)
            added.append((len(sums), counted.launches))

    kernels.begin, kernels.assemble_together = begin, assembled
    return KernelsByPlace(reference, kernels)


def launches(method):
    def run(collective):
        rank = Rank({**method, "groups": 1}, collective, CPU, make_kernels())
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

    return worlds.run(1, run)[0]


def _ramp(shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32)


def is_same(options, **how):
    ours = steps(options, CPU, 1.0, kernels=make_kernels(), **how)
    return ours == steps(options, None, 1.0, kernels=reference, **how)


def main():
    torch.set_num_threads(1)
    change_the_language_once()
    with shuffled():
        same = {name: is_same(CASES[name]) for name in METHODS}
        # One tensor is averaged, and was added up at the first one's turn as if it were not.
        same["another factor"] = is_same(TOPK, averaged=1)
        same["NaN"] = is_same({**TOPK, "on_nonfinite": "propagate"}, is_spoilt=True)
        told = {"same": same, "most together": [max(begun), max(added)[0]]}
        for name in ("ldte_bs", "topk"):
            told[f"launches, {name}"] = launches(CASES[name])
    print(json.dumps(told))


if __name__ == "__main__":
    main()
