"""Contract of the exchanges, and the properties that each declares."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.collectives.contract import Request
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.exchanges.members import Arrival
from hvd_sparse.selectors.contract import Selector

Conversation = Generator[Request, np.ndarray, dict[int, Arrival]]
"""A running exchange: yields requests, is sent their results, returns the arrivals by position."""

DENSE_BYTES = 4
"""Bytes of an entry of a dense float32 allreduce."""

ROUNDING = 1e-12
"""Relative error of the comparison with dense, which must not depend on the last bit."""


@dataclass(frozen=True)
class StepVolume:
    """The volume that a step is to move, behind any warm-up: the same on all ranks.

    Attributes
    ----------
    selector : whose entries are sent
    density : of the selections
    entry_bytes : bytes of an entry, as the codec encodes it
    numel, buckets : entries and buckets of all compressed tensors
    """

    selector: Selector
    density: float
    entry_bytes: float
    numel: int
    buckets: int


@dataclass(frozen=True)
class Exchange:
    """Base of the algorithms made of collectives: frozen dataclasses, registered in ``EXCHANGES``.

    An exchange is a generator, so that its driver decides how to wait. The same code runs over
    threads, mpi4py, Horovod's asynchronous handles and TensorFlow graphs. All ranks yield the same
    kinds of requests in the same order, whatever they selected and whatever went wrong.

    Attributes
    ----------
    id : under which it is registered
    conserves : law 1 holds over all ranks: applied and kept entries together are those accumulated
    settles_later : the entries that leave a rank are known only when all have spoken: memories are
        updated after the exchange
    sums_first : gradients are summed before anything is selected, and residuals are kept where that
        happens
    shares_indices : all ranks send values at the same indices, so that they can be summed; the
        codec is not used
    sums_again : encodes sums of several ranks' entries, so the codec must take any values
    needs_count : must be told k
    needs_nodes : must be told which ranks share a node
    is_one_allgather : consists of one allgather of what every rank has encoded
    selects_everywhere : every rank selects when it is handed its gradient; else ``selects_on`` says
    only_chooses : is replaced by another exchange before the first step
    needs_host : why gradients on an accelerator are copied to the host with this part; empty where
        it works on vectors that lie there
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
    only_chooses: ClassVar[bool] = False
    needs_host: ClassVar[str] = "is not known to work on devices"

    @property
    def conserves(self) -> bool:
        """Tell whether nothing is lost."""
        return True

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        """Return the names of the requests in the order of ``run``; a graph is built from them.

        Each is "allgather", "alltoall" or "allreduce".
        """
        raise NotImplementedError

    def selects_on(self, rank: int, world_size: int, step: int, selector: Selector) -> bool:
        """Tell whether a rank selects when it is given its gradient."""
        return True

    def placement(
        self, rank: int, world_size: int, nodes: tuple[int, ...] | None
    ) -> Placement | None:
        """Return the node of every rank, for exchanges to which it matters; else None.

        Parameters
        ----------
        rank, world_size : in the process set
        nodes : the node of every rank, as the collective found it; None where it is not known
        """
        return None

    def resolve(
        self, candidates: Sequence[Exchange], volume: StepVolume, placement: Placement
    ) -> Exchange:
        """Return the exchange to run: itself, or the one it chooses from what all ranks share.

        Parameters
        ----------
        candidates : the exchanges that fit the compressor's parts and these ranks
        volume : the volume of a step
        placement : the node of every rank
        """
        return self

    def is_dense_cheaper(self, density: float, entry_bytes: float, placement: Placement) -> bool:
        """Tell whether a dense ring allreduce moves no more bytes than this exchange.

        The answer rests on shared quantities only, so that all ranks decide alike. By allgather, at
        8 bytes an entry and with every rank on a node of its own: density >= 1 / world_size.
        """
        if placement.world_size == 1:  # nothing moves; a selection has to be small to be worth it
            return density * entry_bytes >= 2 * DENSE_BYTES
        inbound = self.inbound(density, entry_bytes, placement)
        return inbound >= dense_inbound(placement) * (1 - ROUNDING)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        """Return the bytes that a node receives in a step, for each entry of the tensor: the
        formula.

        A node has one rank or several. Where ranks receive unequally, the number is that of the
        rank that receives most.
        """
        raise NotImplementedError

    def inside(self, placement: Placement) -> float:
        """Return the bytes that a rank receives from its own node before selecting, for each
        entry."""
        return 0.0

    def run(self, context: ExchangeContext) -> Conversation:
        """Exchange one bucket: yield a request, receive its result, return every member's arrival.

        All ranks yield the same kinds of requests in the same order. Errors between two phases are
        kept in the context and raised after the last.
        """
        raise NotImplementedError


def dense_inbound(placement: Placement) -> float:
    """Return the bytes that a dense ring allreduce brings into a node, for each entry of the
    tensor.

    They are 2 * (N - 1) / N * 4 on N ranks of more than one node.
    """
    size = placement.world_size
    return 2 * DENSE_BYTES * (size - 1) / size if placement.node_count > 1 else 0.0


def ring(placement: Placement) -> float:
    """Return the part of a vector that a ring moves past every rank: (N - 1) / N."""
    return float((placement.world_size - 1) / placement.world_size)
