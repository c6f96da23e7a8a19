"""Compares steps in which Triton's interpreter processes all tensors of a bucket at once with steps
of the numpy engine.

Vectors of the CPU stand for vectors of a device. ``bucket_worker.py bits`` compares the bits, and
``bucket_worker.py launches METHOD`` counts the launches for a bucket.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import sys
import threading

import numpy as np
import torch
import worlds
from devices.interpreter import Transfers, change_the_language_once
from devices.step_worker import CASES, TOPK, Rank, steps
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


def check_launches(method):
    """Check that a bucket takes four launches of the engine's own, cold or warm: three for the
    passes, and one for the sums, which also puts back the entries that were too many."""

    def run(collective):
        rank = Rank({**method, "groups": 1}, collective, CPU, make_kernels())
        for position in range(len(SHAPES)):
            rank.step.transactions.state_of(position)  # whose memory is made of zeros, once
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
            assert counted.launches == 3
            reduced = [
                collective.allreduce(wire, f"carrier {position}").wait(None)
                for position, (wire, _) in enumerate(sent)
            ]
            with Transfers(of_torch=True) as counted:
                for each, (_, ticket) in zip(reduced, sent):
                    rank.driver.decompress(each, ticket)
            assert begun == [len(SHAPES)] and added == [(len(SHAPES), 1)], "one group a bucket"
            if number:
                assert counted.launches == 1, "more than the sums"
                surplus = sum(count > 0 for count in put_back)
                assert surplus == len(SHAPES), "the passes took no more than was asked"

    worlds.run(1, run)


def _ramp(shape):
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32)


def check_bits():
    cases = [(CASES[name], {}) for name in METHODS]
    # One tensor is averaged, and was added up at the first one's turn as if it were not.
    cases.append((TOPK, {"averaged": 1}))
    cases.append(({**TOPK, "on_nonfinite": "propagate"}, {"is_spoilt": True}))
    for options, how in cases:
        ours = steps(options, CPU, 1.0, kernels=make_kernels(), **how)
        assert ours == steps(options, None, 1.0, kernels=reference, **how), (options, how)
    assert max(begun) == max(added)[0] == len(SHAPES), "never a whole bucket at once"


def main(task, *methods):
    torch.set_num_threads(1)
    change_the_language_once()
    with shuffled():
        if task == "bits":
            check_bits()
        for method in methods:
            check_launches(CASES[method])


if __name__ == "__main__":
    main(*sys.argv[1:])
