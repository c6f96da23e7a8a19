"""What an exchange is."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from hvd_sparse.collectives.contract import Request
from hvd_sparse.selectors.contract import Selector

if TYPE_CHECKING:
    from hvd_sparse.collectives.topology import Placement
    from hvd_sparse.configuration import Configuration
    from hvd_sparse.exchanges.context import Arrival, Parcel

Conversation = Generator[Request, np.ndarray, "dict[int, Arrival]"]
"""Yields a collective that it wants, is sent that collective's result, returns what arrived for
every tensor."""


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
        self, configuration: Configuration, placement: Placement, numel: int, buckets: int
    ) -> Exchange:
        """The exchange to run: itself, or what it chooses, from quantities that all ranks share.

        numel, buckets : of all tensors that are compressed
        """
        return self

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

    def run(self, parcel: Parcel) -> Conversation:
        """Exchange one bucket."""
        raise NotImplementedError


def ring(placement: Any) -> float:
    """The part of a vector that a ring moves past every rank: (N - 1) / N."""
    return float((placement.world_size - 1) / placement.world_size)
