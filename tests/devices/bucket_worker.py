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
from devices.triton_worker import shuffled
from frontends._method_cases import SHAPES, gradients_of

from hvd_sparse.configuration import Configuration
from hvd_sparse.frontend.torch.arrays import TorchDevices, vector_of
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.torch import KernelsByPlace
from hvd_sparse.kernels.triton import TritonKernels
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.driver import Driver
from hvd_sparse.step.step import Step
from hvd_sparse.types import TensorSpec

CPU = torch.device("cpu")
SPECS = [TensorSpec(f"t{number}", shape, "float32") for number, shape in enumerate(SHAPES)]
PARAMETERS = [np.linspace(-1, 1, spec.numel, dtype=np.float32) for spec in SPECS]
TOPK = {"selector": {"id": "topk", "density": 0.1}}
CASES = {
    "topk": TOPK,
    **{id: {"selector": {"id": id, "density": 0.1}} for id in ("ldte_bs", "ldte", "gaussian_k")},
    "fixed_threshold": {"selector": {"id": "fixed_threshold", "threshold": 1.5}},
    "momentum": {**TOPK, "memory": "momentum_correction"},
}
"""Options by case. The interpreter needs seconds for each."""
RANKS = 2
SPOILT = 3
"""Step in which one entry of one rank is NaN if ``is_spoilt``."""
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


class Rank:
    """One rank that makes steps on the host or on a device."""

    def __init__(self, options, collective, device, kernels):
        made = Configuration.create(**options, allow_dense=False, min_numel=1, compress_1d=True)
        self.step = Step(made, SPECS, grouped(SPECS, made), kernels, np.float64)
        if device is not None:
            self.step.transactions.devices = TorchDevices([device] * len(SPECS))
        self.step.meet(collective.rank, collective.world_size)
        self.driver = Driver(self.step, collective, "step")
        self._collective, self._device = collective, device

    def place(self, position, values):
        if self._device is None:
            return values
        return vector_of(torch.from_numpy(values).to(self._device), SPECS[position])

    def take(self, number, *, is_spoilt, averaged):
        sent = []
        for position, drawn in enumerate(gradients_of(self._collective.rank, number)):
            values = drawn.astype(np.float32).reshape(-1)
            if is_spoilt and number == SPOILT and self._collective.rank == position == 1:
                values[2] = np.nan
            vector = self.place(position, values)
            sent.append(self.driver.compress(position, vector))
            if self._device is not None:
                sent[-1][1].out = vector
        results = []
        for position, (wire, ticket) in enumerate(sent):
            reduced = self._collective.allreduce(wire, f"carrier {position}").wait(None)
            if position == averaged:
                reduced = reduced / RANKS
            parameter = self.place(position, PARAMETERS[position])
            results.append(self.driver.decompress(reduced, ticket, parameter).copy())
        return results


def steps(options, device, kernels, *, is_spoilt=False, averaged=None):
    """Return the bytes of the results of six steps and of the final memories."""

    def run(collective):
        rank = Rank(options, collective, device, kernels)
        applied = []
        for number in range(6):
            applied += rank.take(number, is_spoilt=is_spoilt, averaged=averaged)
        states = rank.step.transactions.settle_all().items()
        kept = [(k, n, a.copy()) for k, state in states for n, a in state.memory.arrays().items()]
        return [each.tobytes() for each in applied], [(k, n, a.tobytes()) for k, n, a in kept]

    return worlds.run(RANKS, run)


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
    cases = [(options, {}) for options in CASES.values()]
    # One tensor is averaged, and was added up at the first one's turn as if it were not.
    cases.append((TOPK, {"averaged": 1}))
    cases.append(({**TOPK, "on_nonfinite": "propagate"}, {"is_spoilt": True}))
    for options, how in cases:
        ours = steps(options, CPU, make_kernels(), **how)
        assert ours == steps(options, None, reference, **how), (options, how)
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
