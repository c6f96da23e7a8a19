"""What Horovod's optimizer takes for a parameter besides sending: its hooks, names and handles.  To be timed."""

from __future__ import annotations

from typing import Callable

import horovod.torch as hvd
import numpy as np
import torch

from ..planning.costs import FP16
from ..runtime.messages import gradients


class OptimizerHanding:
    """Parameters of one entry each, handed over by Horovod's optimizer; and sums, as it waits for them.

    A ``runtime.handing.Users``.
    """

    def __init__(self, count: int) -> None:
        self._parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(count)]
        self._gradients = [torch.zeros(1) for _ in range(count)]
        named = [(f"hvd_sparse.probe.optimizer.{number}", each) for number, each in enumerate(self._parameters)]
        self._optimizer = hvd.DistributedOptimizer(torch.optim.SGD(self._parameters, lr=0.0), named_parameters=named)

    def submit(self) -> None:
        """The gradients come, and its hooks hand them over."""
        torch.autograd.backward(self._parameters, self._gradients)

    def collect(self) -> None:
        """It puts the averages in the gradients' places."""
        self._optimizer.synchronize()

    def sum(self, kind: str, nbytes: int) -> Callable[[], None]:
        """Horovod's wait asks again and again: where ranks share cores, that is time that the others lack."""
        compression = hvd.Compression.fp16 if kind == FP16 else hvd.Compression.none
        values = torch.from_numpy(gradients(hvd.rank(), nbytes // (2 if kind == FP16 else 4), np.float32))

        def run() -> None:
            wire, context = compression.compress(values)
            handle = hvd.allreduce_async_(wire, name=f"hvd_sparse.probe.{kind}.{nbytes}", op=hvd.Average)
            compression.decompress(hvd.synchronize(handle), context)

        return run
