"""What Horovod's optimizer takes for a parameter besides sending: its hooks, names and handles.  To be timed."""

from __future__ import annotations

import horovod.torch as hvd
import torch


class OptimizerHanding:
    """Parameters of one entry each, handed over by Horovod's optimizer.

    A ``runtime.handing.Handing``.
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
