"""Tensors of one size that take the way of a step, for timing.

They do so on all ranks at once, with Horovod at work beside them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType

import numpy as np

from hvd_sparse.autotune.route import Route
from hvd_sparse.collectives.contract import Collective, Pending
from hvd_sparse.core.kernels.contract import Kernels
from hvd_sparse.core.step.buckets import grouped
from hvd_sparse.core.step.driver import NOTHING, Driver
from hvd_sparse.core.step.records import Ticket
from hvd_sparse.core.step.step import Step
from hvd_sparse.types import TensorSpec

TENSORS = 16
"""Tensors in a round of computing."""
GRADIENTS = 3
"""Gradients of a rank, which take turns."""
POLL_S = 1e-3


class ProbedTensors:
    """Tensors of one size in one bucket, with all of a step but Horovod's optimizer.

    Parameters
    ----------
    route : of their message
    kernels : of the engine that training would use
    numel : entries of each tensor
    collective : of the ranks
    """

    def __init__(
        self, route: Route, kernels: Kernels | ModuleType, numel: int, collective: Collective
    ) -> None:
        self._collective = collective
        self._name = f"probe.{route.exchange.id}.{numel}.{route.configuration.density(0)}"
        specs = [TensorSpec(f"probe.{number}", (numel,), "float32") for number in range(TENSORS)]
        configuration = replace(route.configuration, min_numel=1, compress_1d=True, groups=1)
        step = Step(
            configuration, specs, grouped(specs, configuration), kernels, carrier_dtype=np.float64
        )
        self._driver = Driver(step, collective, self._name)
        draw = np.random.default_rng([collective.rank, numel])
        self._gradients = [draw.laplace(size=numel).astype(np.float32) for _ in range(GRADIENTS)]
        self._out = [np.empty(numel, np.float32) for _ in range(TENSORS)]
        self._sent: list[tuple[Pending, Ticket]] = []
        self._steps = 0

    def send(self) -> None:
        """Select from all tensors, submit their carriers, and start the exchange."""
        self._sent = []
        for number in range(TENSORS):
            wire, ticket = self._driver.compress(
                number, self._gradients[(self._steps + number) % GRADIENTS]
            )
            # The same names for all routes: Horovod's cycles take longer the more names it knows.
            carrier = self._collective.allreduce(wire, f"hvd_sparse.probe.carrier.{number}")
            self._sent.append((carrier, ticket))
        self._steps += 1

    @property
    def pending(self) -> list[Pending]:
        """Return the collectives under way: carriers, and the exchange's first one."""
        return [carrier for carrier, _ in self._sent] + self._driver.under_way()

    def receive(self, timeout_s: float) -> None:
        """Run the exchange to its end, and make the gradients of all tensors."""
        for (carrier, ticket), out in zip(self._sent, self._out):
            reduced = carrier.wait(timeout_s) / self._collective.world_size
            self._driver.decompress(reduced, ticket, NOTHING, out)


def wait_for(pending: Sequence[Pending], timeout_s: float) -> None:
    """Wait until all results are there, and take none.

    It returns in silence after ``timeout_s`` seconds: the wait that takes a result raises the
    error, with the name of what is missing.
    """
    deadline = time.monotonic() + timeout_s
    while not all(each.is_done() for each in pending) and time.monotonic() < deadline:
        time.sleep(POLL_S)
