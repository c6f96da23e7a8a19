"""What a step does with its tensors, to be timed: some of one size, on all ranks at once, with Horovod at work beside them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.collective import Collective, Pending
from ..core.configuration import Configuration
from ..core.pipeline import Pipeline
from ..core.state import TensorState
from ..types import TensorSpec

TENSORS = 16
"""Of a round of computing."""
GRADIENTS = 3
"""That take turns."""
POLL_S = 1e-3


class ProbedTensors:
    """Tensors of one size, and what a step does with them.

    Every tensor is handed to Horovod with a carrier of its own, as in training; its message goes to nobody: what is decoded
    are as many copies of this rank's.
    """

    def __init__(self, configuration: Configuration, kernels: Any, numel: int, collective: Collective) -> None:
        self._collective, self._pipeline = collective, Pipeline(configuration, kernels)
        self._spec = TensorSpec("probe", (numel,), "float32")
        self._states = [TensorState(self._spec, configuration) for _ in range(TENSORS)]
        draw = np.random.default_rng([collective.rank, numel])
        self._gradients = [draw.laplace(size=numel).astype(np.float32) for _ in range(GRADIENTS)]
        self._frames: list[Any] = [None] * TENSORS
        self._out = [np.empty(numel, np.float32) for _ in range(TENSORS)]
        self.pending: list[Any] = []

    def send(self) -> None:
        rank, ranks = self._collective.rank, self._collective.world_size
        self.pending = []
        for number, state in enumerate(self._states):
            gradient = self._gradients[(state.steps + number) % GRADIENTS]
            self._frames[number] = self._pipeline.send(state, gradient, rank, ranks, dense=False).frame
            state.commit()
            self.pending.append(self._collective.allreduce(np.zeros(1), f"hvd_sparse.probe.carrier.{number}"))

    def receive(self, timeout_s: float) -> None:
        ranks, whole = self._collective.world_size, slice(0, self._spec.numel)
        for number, state in enumerate(self._states):
            self.pending[number].wait(timeout_s)
            parts = [(whole, self._frames[number])] * ranks
            self._pipeline.receive(self._spec, parts, 1 / ranks, self._out[number], state.steps)


def wait_for(pending: Sequence[Pending], timeout_s: float) -> None:
    """Until all are there, none taken; after so many seconds it is left to the taking to say what is missing."""
    deadline = time.monotonic() + timeout_s
    while not all(each.is_done() for each in pending) and time.monotonic() < deadline:
        time.sleep(POLL_S)
