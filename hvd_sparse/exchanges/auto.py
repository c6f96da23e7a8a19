"""The exchange that is quickest here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from hvd_sparse.checks import check_number, check_whole
from hvd_sparse.collectives.topology import Placement, in_nodes_of, is_elastic
from hvd_sparse.compatibility import check_exchange, check_select_over
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import Conversation, Exchange
from hvd_sparse.registry import EXCHANGES

if TYPE_CHECKING:
    from hvd_sparse.configuration import Configuration
    from hvd_sparse.exchanges.context import Parcel

LONG_RUN = 10**9
"""A step behind every warm-up."""

UNKNOWN_DENSITY = 0.01
"""Guess for methods that are told no density."""


@EXCHANGES.register("auto")
@dataclass(frozen=True)
class Auto(Exchange):
    """Before the first step, choose the exchange that a model of the network says is quickest.

        time of a step = phases * buckets * latency + bytes into a node / bandwidth

    From what all ranks share: these options, the density behind any warm-up, the codec's bytes an
    entry, the tensors, the number of ranks and which of them share a node.  ``stats()["exchange"]``
    says which it is.

    Parameters
    ----------
    latency_ms : what a collective takes however little it moves; a cycle of Horovod's is 1 ms
    bandwidth_gbit : of a node's network, Gbit/s
    ranks_per_node : as for ``hierarchical``; None asks Horovod, and counts every rank as a node
        where it does not know

    Notes
    -----
    Exchanges whose result rests on an assumption about the gradients (``shared_index``, but for
    selectors whose indices are common anyway) or that lose mass are not considered.
    """

    latency_ms: float = 1.0
    bandwidth_gbit: float = 1.0
    ranks_per_node: int | None = None

    needs_nodes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_number(self.latency_ms, "latency_ms of Auto", 0)
        check_number(self.bandwidth_gbit, "bandwidth_gbit of Auto", 0)
        if self.ranks_per_node is not None:
            check_whole(self.ranks_per_node, "ranks_per_node of Auto", 1)

    def placement(
        self, rank: int, world_size: int, nodes: tuple[int, ...] | None
    ) -> Placement | None:
        if self.ranks_per_node is None and nodes is not None:
            return Placement(rank, nodes)
        return in_nodes_of(self.ranks_per_node or 1, rank, world_size)

    def resolve(
        self, configuration: Configuration, placement: Placement, numel: int, buckets: int
    ) -> Exchange:
        costs = self.costs(configuration, placement, numel, buckets)
        return min(costs, key=lambda exchange: costs[exchange])

    def costs(
        self, configuration: Configuration, placement: Placement, numel: int, buckets: int
    ) -> dict[Exchange, float]:
        """Milliseconds a step, by exchange."""
        density = configuration.density(LONG_RUN) or UNKNOWN_DENSITY
        bits_per_ms = self.bandwidth_gbit * 1e6
        found = {}
        for exchange in self._candidates(configuration, placement):
            phases = len(exchange.phases(configuration.selector, placement.world_size))
            entry_bytes = configuration.codec.entry_bytes(max(1, numel // max(1, buckets)), density)
            inbound = exchange.inbound(density, entry_bytes, placement)
            found[exchange] = phases * buckets * self.latency_ms + 8 * inbound * numel / bits_per_ms
        return found

    def _candidates(self, configuration: Configuration, placement: Placement) -> list[Exchange]:
        selector = configuration.selector
        is_common = selector.has_shared_indices or selector.sums_statistics
        suitable = []
        for id in EXCHANGES:
            if id == self.id:  # type: ignore[attr-defined]
                continue
            exchange: Exchange = EXCHANGES.create(id)
            divides = placement.node_count < placement.world_size
            if (exchange.shares_indices and not is_common) or (
                exchange.sums_first and (not divides or is_elastic())
            ):
                continue
            try:
                check_exchange(
                    exchange,
                    selector,
                    configuration.memory,
                    configuration.codec,
                    configuration.schedule,
                )
                check_select_over(
                    configuration.select_over, exchange, selector, configuration.groups
                )
            except InvalidOption:
                continue
            suitable.append(exchange)
        return suitable

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return math.inf  # never run: it is replaced before the first step

    def run(self, parcel: Parcel) -> Conversation:
        raise InvalidOption(
            "exchange auto was not told where the ranks are: Step.place comes before the first step"
        )
