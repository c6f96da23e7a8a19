"""Compares steps of two ranks with vectors on the pretend device and on the host."""

import numpy as np
import torch
import worlds
from devices import pretend
from frontends._method_cases import SHAPES, STAYING, gradients_of

from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import PeerFailure
from hvd_sparse.frontend.torch.arrays import TorchDevices, vector_of
from hvd_sparse.kernels.engines import resolve_engine, resolve_engine_by_place
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.driver import Driver
from hvd_sparse.step.step import Step
from hvd_sparse.types import TensorSpec

SPECS = [TensorSpec(f"t{number}", shape, "float32") for number, shape in enumerate(SHAPES)]
PARAMETERS = [np.linspace(-1, 1, spec.numel, dtype=np.float32) for spec in SPECS]
TOPK = {"selector": {"id": "topk", "density": 0.1}}
CASES = {
    "topk": TOPK,
    **STAYING,
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
del CASES["muon"]  # products of matrices have other last digits there
RANKS = 2
SCALES = (1.0, 3.0)
SPOILT = 3
"""Step in which one entry of one rank is NaN if ``is_spoilt``."""


class Rank:
    """One rank that makes steps on the host or on a device."""

    def __init__(self, options, collective, device, kernels=None):
        made = Configuration.create(**options, allow_dense=False, min_numel=1, compress_1d=True)
        made = made.for_tensors(SPECS)
        if kernels is None:
            kernels = (resolve_engine if device is None else resolve_engine_by_place)(None)
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

    def take(self, number, scale, *, is_spoilt, averaged=None):
        sent = []
        for position, drawn in enumerate(gradients_of(self._collective.rank, number)):
            values = drawn.astype(np.float32).reshape(-1) * np.float32(scale)
            if is_spoilt and number == SPOILT and self._collective.rank == position == 1:
                values[2] = np.nan
            vector = self.place(position, values)
            sent.append(self.driver.compress(position, vector, scale))
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


def steps(options, device, scale, *, is_spoilt=False, averaged=None, kernels=None):
    """Return the bytes of the results of six steps and of the final memories. A failed step has its
    error text as result."""

    def run(collective):
        rank = Rank(options, collective, device, kernels)
        applied = []
        for number in range(6):
            try:
                applied += rank.take(number, scale, is_spoilt=is_spoilt, averaged=averaged)
            except PeerFailure as error:
                applied.append(np.frombuffer(str(error).encode(), np.uint8))
        states = rank.step.transactions.settle_all().items()
        kept = [(k, n, a.copy()) for k, state in states for n, a in state.memory.arrays().items()]
        return [each.tobytes() for each in applied], [(k, n, a.tobytes()) for k, n, a in kept]

    return worlds.run(RANKS, run)


def main():
    torch.set_num_threads(1)
    device = pretend.load()
    pretend.late(True)
    for name, options in CASES.items():
        for scale in SCALES:
            host, there = steps(options, None, scale), steps(options, device, scale)
            assert host == there, f"{name} at scale {scale:g}"
    host, there = (steps(TOPK, place, 1.0, averaged=1) for place in (None, device))
    assert host == there, "another factor"
    for what in ("propagate", "raise"):
        options = {**TOPK, "on_nonfinite": what}
        host, there = (steps(options, place, 1.0, is_spoilt=True) for place in (None, device))
        assert host == there and host != steps(options, None, 1.0), f"NaN, {what}"
    assert pretend.reused() == 0, "a pinned source was changed too early"


if __name__ == "__main__":
    main()
