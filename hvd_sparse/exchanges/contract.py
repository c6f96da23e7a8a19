"""The contract of exchanges."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.collectives.contract import Placement, Request
from hvd_sparse.exchanges.context import Arrival, ExchangeContext
from hvd_sparse.selectors.contract import Selector

Conversation = Generator[Request, np.ndarray, dict[int, Arrival]]
"""A running exchange: it yields requests, receives their results, and returns the arrivals by
position."""

DENSE_BYTES = 4
"""Bytes per entry of a dense float32 allreduce."""

ROUNDING = 1e-12
"""Relative tolerance of the comparison with dense, so that it does not depend on the last bit."""


@dataclass(frozen=True)
class Exchange:
    """Base class of exchanges: frozen dataclasses, registered in ``EXCHANGES``.

    ``run`` is a generator, because its driver decides how to wait for a collective: the same code
    runs over threads, Horovod's asynchronous handles and TensorFlow graphs. All ranks must yield
    the same kinds of requests in the same order, whatever they selected and even after an error.

    Attributes
    ----------
    paper : key of the paper in ``papers.bib``, or None
    conserves : whether applied and kept entries of all ranks add up to the accumulated ones
    settles_later : memories are updated after the exchange, because only its result determines
        which entries leave a rank
    sums_first : gradients are summed before selection; residuals are kept where the sum is
    shares_indices : all ranks send values at the same indices, which an allreduce sums, without a
        codec
    sums_again : sums of several ranks' entries are encoded, so the codec must accept any values
    needs_count : needs a density, from which k is computed
    needs_nodes : needs to know which ranks share a node
    is_one_allgather : consists of a single allgather of every rank's frames
    selects_everywhere : every rank selects from its gradient on every step; if False,
        ``selects_on`` decides
    needs_host : why gradients on an accelerator are copied to the host; empty if it works there
    """

    id: ClassVar[str]
    paper: ClassVar[str | None] = None
    settles_later: ClassVar[bool] = False
    sums_first: ClassVar[bool] = False
    shares_indices: ClassVar[bool] = False
    sums_again: ClassVar[bool] = False
    needs_count: ClassVar[bool] = False
    needs_nodes: ClassVar[bool] = False
    is_one_allgather: ClassVar[bool] = False
    selects_everywhere: ClassVar[bool] = True
    needs_host: ClassVar[str] = "is not known to work on devices"

    @property
    def conserves(self) -> bool:
        """As above."""
        return True

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        """Return the kinds of the requests of ``run`` in order, to build a graph from: "allgather",
        "alltoall" or "allreduce"."""
        raise NotImplementedError

    def selects_on(self, rank: int, world_size: int, step: int, selector: Selector) -> bool:
        """Return whether ``rank`` selects from its own gradient at ``step``."""
        return True

    def placement(
        self, rank: int, world_size: int, nodes: tuple[int, ...] | None
    ) -> Placement | None:
        """Return the node of every rank, from ``nodes`` if the collective knows them; None for
        exchanges that do not use it."""
        return None

    def is_dense_cheaper(self, density: float, entry_bytes: float, placement: Placement) -> bool:
        """Return whether a dense ring allreduce moves no more bytes; the same on all ranks.

        For example, with an allgather of 8 bytes an entry and one rank per node: density >= 1 /
        world_size.
        """
        if placement.world_size == 1:  # nothing is sent; compare the sizes of the payloads
            return density * entry_bytes >= 2 * DENSE_BYTES
        dense = 2 * DENSE_BYTES * ring(placement) if placement.node_count > 1 else 0.0
        return self.inbound(density, entry_bytes, placement) >= dense * (1 - ROUNDING)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        """Return the bytes that a node of one or more ranks receives in a step, per tensor entry;
        the largest of all nodes."""
        raise NotImplementedError

    def run(self, context: ExchangeContext) -> Conversation:
        """Exchange one bucket: yield requests, receive their results, return each member's arrival.

        Errors between two phases are kept in the context and raised after the last phase.
        """
        raise NotImplementedError


def ring(placement: Placement) -> float:
    """Return (N - 1) / N, the fraction of a vector that each rank receives in a ring."""
    return float((placement.world_size - 1) / placement.world_size)
