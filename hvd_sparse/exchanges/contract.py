"""What an exchange is."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.collectives.contract import Request
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.exchanges.context import Arrival, ExchangeContext
from hvd_sparse.selectors.contract import Selector

Conversation = Generator[Request, np.ndarray, dict[int, Arrival]]
"""Yields a collective that it wants, is sent that collective's result, and returns what arrived for
every tensor."""

DENSE_BYTES = 4
"""An entry of a dense float32 allreduce."""

ROUNDING = 1e-12


@dataclass(frozen=True)
class Traffic:
    """What a step is to move, behind any warm-up: the same on all ranks.

    Attributes
    ----------
    selector : whose entries travel
    density : of the selections
    entry_bytes : of an entry, as the codec encodes it
    numel, buckets : of all tensors that are compressed
    """

    selector: Selector
    density: float
    entry_bytes: float
    numel: int
    buckets: int


@dataclass(frozen=True)
class Exchange:
    """An algorithm made of collectives, as a generator: whoever drives it decides how to wait.

    The same code so runs over threads, mpi4py, Horovod's asynchronous handles and TensorFlow
    graphs.  All ranks yield the same kinds of requests in the same order, whatever they selected
    and whatever went wrong. Exchanges are frozen dataclasses, registered in ``EXCHANGES``.

    Attributes
    ----------
    id : under which it is registered
    conserves : law 1 holds over all ranks: what is applied and what all keep back are together what
        was accumulated
    settles_later : what leaves a rank is known only when all have spoken: memories are updated
        after the exchange
    sums_first : gradients are summed before anything is selected, and residuals are kept where that
        happens
    shares_indices : all ranks send values at the same indices, so that they can be summed; the
        codec is not used
    sums_again : encodes sums of several ranks' entries, so the codec must take any values
    needs_count : must be told k
    needs_nodes : must be told which ranks share a node
    is_one_allgather : all that it takes is one allgather of what every rank has encoded
    only_chooses : is replaced by another exchange before the first step
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
    only_chooses: ClassVar[bool] = False

    @property
    def conserves(self) -> bool:
        """Whether nothing is lost."""
        return True

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        """Names of the requests that it yields, in order; a graph is built from them."""
        raise NotImplementedError

    def selects_on(self, rank: int, world_size: int, step: int, selector: Selector) -> bool:
        """Whether a rank selects when it is handed its gradient."""
        return True

    def placement(
        self, rank: int, world_size: int, nodes: tuple[int, ...] | None
    ) -> Placement | None:
        """Where the ranks are, for exchanges to which it matters; ``nodes`` is what the collective
        found."""
        return None

    def resolve(
        self, candidates: Sequence[Exchange], traffic: Traffic, placement: Placement
    ) -> Exchange:
        """Return the exchange to run: itself, or what it chooses, from what all ranks share.

        candidates : the exchanges that fit the compressor's parts and these ranks
        """
        return self

    def is_dense_cheaper(self, density: float, entry_bytes: float, placement: Placement) -> bool:
        """Tell whether a dense ring allreduce moves no more bytes than this exchange.

        From shared quantities only, so that all ranks decide alike.  By allgather, at 8 bytes an
        entry and with every rank on a node of its own: density >= 1 / world_size.
        """
        if placement.world_size == 1:  # nothing moves; a selection has to be small to be worth it
            return density * entry_bytes >= 2 * DENSE_BYTES
        inbound = self.inbound(density, entry_bytes, placement)
        return inbound >= dense_inbound(placement) * (1 - ROUNDING)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        """Bytes that a node (of one rank or several) receives in a step, for each entry of the
        tensor: the formula.

        Where ranks receive unequally, of the one that receives most.
        """
        raise NotImplementedError

    def inside(self, placement: Placement) -> float:
        """Bytes that a rank receives from its own node before anything is selected, for each entry:
        the formula."""
        return 0.0

    def run(self, context: ExchangeContext) -> Conversation:
        """Exchange one bucket."""
        raise NotImplementedError


def dense_inbound(placement: Placement) -> float:
    """Return the bytes that a dense ring allreduce brings into a node, for each entry of the
    tensor: 2 * (N - 1) / N * 4."""
    size = placement.world_size
    return 2 * DENSE_BYTES * (size - 1) / size if placement.node_count > 1 else 0.0


def ring(placement: Placement) -> float:
    """The part of a vector that a ring moves past every rank: (N - 1) / N."""
    return float((placement.world_size - 1) / placement.world_size)
