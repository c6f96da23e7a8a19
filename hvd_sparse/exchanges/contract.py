"""The contract of exchanges, and the comparison of their bytes with those of a dense allreduce."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import Options
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.contract import Placement, Request
from hvd_sparse.exchanges.context import Arrival, ExchangeContext
from hvd_sparse.selectors.contract import Selector

Conversation = Generator[Request, np.ndarray, dict[int, Arrival]]
"""A running exchange: a generator that yields requests for collectives, receives their results, and
returns an arrival for each tensor, by position."""


@dataclass(frozen=True)
class Exchange(Options):
    """Base class of exchanges: frozen dataclasses, registered in ``EXCHANGES``.

    ``run`` is a generator, so that its caller decides how to wait for a collective: in threads,
    with Horovod's asynchronous handles or in TensorFlow graphs. All ranks must yield the same kinds
    of requests in the same order, whatever they have selected, and even after an error.

    Attributes
    ----------
    conserves : no entry is lost: the applied entries and the residuals of all ranks add up to the
        accumulated vectors of all ranks
    settles_later : memories are updated after the exchange, because only its result determines
        which entries are removed from a rank's residual. Unless ``shares_indices``, the exchange
        may also return entries that were not applied, so the residual must be stored in float32
    sums_first : gradients are summed before the selection, and the summing rank keeps the residual
    shares_indices : all ranks send values at the same indices; an allreduce sums these values,
        without a codec
    needs_count : the exchange needs a density, from which k is computed
    needs_nodes : the exchange needs to know which ranks share a node
    is_one_allgather : the exchange is a single allgather of every rank's encoded selections
    varies_phases : the number of ``phases`` depends on the number of ranks
    needs_host : the reason why gradients on an accelerator must be copied to the host, as the end
        of a sentence about the exchange; empty if the copy is not needed
    """

    id: ClassVar[str]
    conserves: ClassVar[bool] = True
    settles_later: ClassVar[bool] = False
    sums_first: ClassVar[bool] = False
    shares_indices: ClassVar[bool] = False
    needs_count: ClassVar[bool] = False
    needs_nodes: ClassVar[bool] = False
    is_one_allgather: ClassVar[bool] = False
    varies_phases: ClassVar[bool] = False
    needs_host: ClassVar[str] = "is not known to work on devices"

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        """Return the kinds of the requests that ``run`` yields, in order: "allgather", "alltoall"
        or "allreduce". TensorFlow builds its graph from them."""
        raise NotImplementedError

    def selects_on(self, rank: int, world_size: int, step: int, selector: Selector) -> bool:
        """Return whether ``rank`` selects from its own gradient at ``step``."""
        return True

    def placement(self, rank: int, world_size: int, nodes: tuple[int, ...] | None) -> Placement:
        """Return the placement (the node of every rank) by which this exchange works. Called only
        if ``needs_nodes``. ``nodes`` has the node of every rank as the collectives report it; None
        if they do not."""
        raise NotImplementedError

    def is_dense_cheaper(
        self, density: float, entry_bytes: float, placement: Placement, value_bytes: int = 4
    ) -> bool:
        """Return whether a dense ring allreduce moves at most as many bytes as this exchange. The
        answer is the same on all ranks. For example, with one rank per node, a dense allreduce of
        4 bytes per value is cheaper than an allgather of 8 bytes per entry if
        density >= 1 / world_size."""
        if placement.world_size == 1:  # no bytes are sent, so compare the sizes of the messages
            return density * entry_bytes >= 2 * value_bytes
        dense = 2 * value_bytes * ring(placement) if placement.node_count > 1 else 0.0
        # Tolerate differences in rounding.
        return self.inbound(density, entry_bytes, placement) >= dense * (1 - 1e-12)

    def entry_bytes(self, codec: Codec, numel: int, density: float, value_bytes: int) -> float:
        """Return the expected number of bytes of an entry that a rank sends. ``value_bytes`` is 4
        for float32 values, 8 for float64 values."""
        return codec.entry_bytes(numel, density, value_bytes)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        """Return an upper bound of the bytes that a node receives from other nodes in a step,
        divided by the number of the tensors' entries. A sent entry has ``entry_bytes`` bytes."""
        raise NotImplementedError

    def run(self, context: ExchangeContext) -> Conversation:
        """Exchange one bucket's selections. The context raises errors only after the last phase."""
        raise NotImplementedError


def ring(placement: Placement) -> float:
    """Return (N - 1) / N, the fraction of a vector that each rank receives in a ring allgather."""
    return float((placement.world_size - 1) / placement.world_size)
