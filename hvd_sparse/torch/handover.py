"""The time that Horovod's optimizer takes for a parameter besides sending: hooks and handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import horovod.torch as hvd
import numpy as np
import torch

from hvd_sparse.autotune.costmodel.costs import FP16
from hvd_sparse.autotune.timed_collectives import gradients
from hvd_sparse.torch.api import Compression

PARTS = 4
"""Tensors of a sum: Horovod fuses them, and copies them for it, as those of a step."""
Named = list[tuple[str, torch.nn.Parameter]]


class OptimizerHanding:
    """Parameters of one entry each, handed over by Horovod's optimizer.  A
    ``autotune.submissions.Submission``.

    count : of the parameters
    label : of their names
    compression : makes, of the named parameters, what the optimizer is told
    """

    def __init__(self, count: int, label: str, compression: Callable[[Named], Any]) -> None:
        self._parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(count)]
        self._gradients = [torch.zeros(1) for _ in range(count)]
        named = [
            (f"hvd_sparse.probe.{label}.{number}", each)
            for number, each in enumerate(self._parameters)
        ]
        sgd = torch.optim.SGD(self._parameters, lr=0.0)
        self._optimizer = hvd.DistributedOptimizer(
            sgd, named_parameters=named, compression=compression(named)
        )

    def submit(self) -> None:
        """The gradients come, and its hooks hand them over."""
        torch.autograd.backward(self._parameters, self._gradients)

    def collect(self) -> None:
        """It puts the averages in the gradients' places."""
        self._optimizer.synchronize()


class TorchUsers:
    """A ``autotune.submissions.Users``.

    count : of the parameters that are handed over
    """

    def __init__(self, count: int) -> None:
        self.plain = OptimizerHanding(count, "optimizer", lambda named: hvd.Compression.none)
        self.compressed = OptimizerHanding(
            count, "compressor", lambda named: Compression.topk(named, density=0.01, name="probe")
        )

    def sum(self, kind: str, nbytes: int) -> Callable[[], None]:
        """Horovod's wait asks again and again: where ranks share cores, that is time that the
        others lack."""
        compression = hvd.Compression.fp16 if kind == FP16 else hvd.Compression.none
        values = torch.from_numpy(
            gradients(hvd.rank(), nbytes // (2 if kind == FP16 else 4), np.float32)
        )
        parts = values.tensor_split(PARTS)
        names = [f"hvd_sparse.probe.{kind}.{nbytes}.{number}" for number in range(PARTS)]

        def run() -> None:
            started = []
            for part, name in zip(parts, names):
                wire, context = compression.compress(part)
                started.append((hvd.allreduce_async_(wire, name=name, op=hvd.Average), context))
            for handle, context in started:
                compression.decompress(hvd.synchronize(handle), context)

        return run
