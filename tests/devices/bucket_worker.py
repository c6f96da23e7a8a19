"""Steps of the numpy core whose buckets an engine passes over at once, beside numpy's own steps.

``bucket_worker.py ENGINE``: ``torch``, or ``triton`` by Triton's interpreter, with vectors of the
CPU as those of a device. Prints by case whether the bits are the same, and how many launches a
bucket took where the engine counts them, as JSON.
"""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is there
import json
import sys
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from devices.step_worker import CASES, SCALES, TOPK, Rank, steps
from frontends._integer_gradients import SHAPES

from hvd_sparse.collectives.local import LocalCollective, LocalWorld
from hvd_sparse.core.kernels import reference
from hvd_sparse.core.kernels.torch import TorchKernels
from hvd_sparse.core.kernels.torch.by_place import KernelsByPlace
from hvd_sparse.core.kernels.torch.coming import Answers, Pass

CPU = torch.device("cpu")
METHODS: dict[str, dict[str, Any]] = {
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
        }.items()
    },
}
INTERPRETED = ("topk", "ldte_bs", "fixed_threshold", "momentum")
"""Those that Triton's interpreter is asked for, which takes seconds for each."""
begun: list[int] = []
"""The tensors of every group of passes that an engine was given."""
one_at_a_time = threading.RLock()
"""Triton's interpreter is one for all threads, which are ranks here."""


def kernels_of(engine: str) -> Any:
    """Return numpy's kernels, and an engine's for vectors on a device, which notes its buckets."""
    if engine == "torch":
        kernels: Any = TorchKernels(reference)
    else:
        from hvd_sparse.core.kernels.triton import TritonKernels

        kernels = TritonKernels(reference, block=256)  # several programs a tensor
    own, assemble = kernels.begin, kernels.assemble

    def begin(passes: Sequence[Pass]) -> Answers:
        with one_at_a_time:
            begun.append(len(passes))
            return own(passes)

    def assembled(*given: Any) -> None:
        with one_at_a_time:
            assemble(*given)

    kernels.begin, kernels.assemble = begin, assembled
    return KernelsByPlace(reference, kernels)


def mixed() -> AbstractContextManager[Any]:
    """Let programs run in another order each time, where there are any."""
    if ENGINE == "torch":
        return nullcontext()
    from devices.triton_worker import shuffled

    return shuffled()


def launches() -> dict[str, list[int]]:
    """Return the launches of a step's passes, cold and warm, of all tensors in one bucket."""
    from devices.transfers import Transfers

    def run(collective: LocalCollective) -> dict[str, list[int]]:
        rank = Rank({**TOPK, "groups": 1}, collective, CPU, kernels_of(ENGINE))
        for position in range(len(SHAPES)):
            rank.step.transactions.state_of(position)  # whose memory is made of zeros, once
        found: dict[str, list[int]] = {"cold": [], "warm": []}
        for number in range(4):
            gradients = [
                rank.place(i, np.full(np.prod(shape), 1.0 + number, np.float32) * _ramp(shape))
                for i, shape in enumerate(SHAPES)
            ]
            begun.clear()
            sent = []
            with Transfers() as counted:
                for position, vector in enumerate(gradients):
                    sent.append(rank.driver.compress(position, vector))
            found["warm" if number else "cold"].append(counted.launches)
            assert begun == [len(SHAPES)], "a bucket is one group of passes"
            for position, ((wire, ticket), vector) in enumerate(zip(sent, gradients)):
                reduced = collective.allreduce(wire, f"carrier {position}").wait(None)
                rank.driver.decompress(reduced, ticket, out=vector)
        return found

    return LocalWorld(1).run(run)[0]


def _ramp(shape: Sequence[int]) -> np.ndarray:
    return np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32)


def main() -> None:
    torch.set_num_threads(1)
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
        for what in ("propagate", "raise")[: 1 if is_slow else 2]:
            options = {**TOPK, "on_nonfinite": what}
            ours = steps(options, CPU, 1.0, is_spoilt=True, kernels=kernels_of(ENGINE))
            theirs = steps(options, None, 1.0, is_spoilt=True, kernels=reference)
            same[f"NaN, {what}"] = ours == theirs
        most = max(begun)
        told = {"same": same, "most together": most}
        if is_slow:
            told["launches"] = launches()
    print(json.dumps(told))


if __name__ == "__main__":
    ENGINE = sys.argv[1]
    main()
