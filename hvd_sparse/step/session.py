"""Sessions, which compress and reduce numpy gradients for tests and simulations, and need no
framework."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hvd_sparse.collectives.contract import Collective, Gatherer
from hvd_sparse.composition import refuse_hiding
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.step.buckets import grouped
from hvd_sparse.step.driver import NOTHING, Driver
from hvd_sparse.step.handshake import describe_rank, handshake
from hvd_sparse.step.records import Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.types import TensorSpec


class Session:
    """One rank's compressor for numpy gradients.

    The constructor is collective: it compares the configurations and tensors of all ranks.

    Parameters
    ----------
    configuration : the method and its options, the same on all ranks
    specs : the tensors, in the same order on all ranks
    collective : connects the ranks, for example a rank of ``LocalWorld``
    average : ``reduce`` returns the mean over ranks; if False, the sum
    buckets : positions of the tensors of every bucket; None for the buckets that the
        configuration's option ``groups`` gives
    kernels : the array functions to use; plain numpy by default

    Raises
    ------
    RankMismatch : the configurations or the tensors of the ranks differ
    """

    def __init__(
        self,
        configuration: Configuration,
        specs: Sequence[TensorSpec],
        collective: Collective,
        *,
        average: bool = True,
        buckets: Sequence[tuple[int, ...]] | None = None,
        kernels: Kernels = reference,
    ) -> None:
        configuration = configuration.for_tensors(specs)
        refuse_hiding(configuration.rule, "a session has no backward pass that could hide messages")
        plan = grouped(specs, configuration) if buckets is None else buckets
        self.step = Step(configuration, specs, plan, kernels, carrier_dtype=np.float64)
        self.step.reduction = "average" if average else "sum"
        self.driver = Driver(self.step, collective, configuration.name or "session")
        self.collective = collective
        self.average = average
        document = describe_rank(configuration, specs, self.driver.name, self.step.placement)
        name = f"hvd_sparse.handshake.{self.driver.name}"
        handshake(document, Gatherer(collective, name, configuration.timeout_s))
        self.step.meet(collective.rank, collective.world_size)

    def reduce(
        self, gradients: Mapping[str, np.ndarray], scale: float = 1.0
    ) -> dict[str, np.ndarray]:
        """Run one step, which all ranks must do together. Return the reduced gradients by the
        tensors' names, with the shapes and dtypes of the given gradients. ``scale`` is the loss
        scale that the given gradients already contain."""
        factor = 1.0 / self.collective.world_size if self.average else 1.0
        sent: dict[str, tuple[np.ndarray, Ticket]] = {}
        for position, spec in enumerate(self.step.specs):
            if spec.key in gradients:
                flat = np.ascontiguousarray(gradients[spec.key], spec.accumulator).reshape(-1)
                if self.step.configuration.is_sparse(spec.shape, spec.numel):
                    sent[spec.key] = self.driver.compress(position, flat, scale)
                else:
                    sent[spec.key] = flat, self.step.enter_dense(position, scale)
        reduced = {
            key: self.collective.allreduce(wire, key).wait(None) * factor
            for key, (wire, _) in sent.items()
        }
        results = {}
        for key, (_, ticket) in sent.items():
            if ticket.bucket is None:
                flat = self.driver.finish_dense(ticket, reduced[key], NOTHING)
            else:
                flat = self.driver.decompress(reduced[key], ticket, NOTHING)
            results[key] = flat.reshape(gradients[key].shape).astype(
                gradients[key].dtype, copy=False
            )
        return results
