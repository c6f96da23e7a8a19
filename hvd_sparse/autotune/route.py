"""What a message of a run takes: its collectives, and the bytes that each brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_sparse.autotune.costmodel.costs import Line, one_after_another
from hvd_sparse.autotune.costmodel.predict import by_collective, inbound_bytes
from hvd_sparse.autotune.timed_collectives import LOCAL
from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.contract import Collective
from hvd_sparse.collectives.topology import Placement, in_nodes_of
from hvd_sparse.configuration import Configuration
from hvd_sparse.core.wire.message import overhead_bytes
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.schedules.contract import LONG_RUN, UNKNOWN_DENSITY


@dataclass(frozen=True)
class Route:
    """The exchange that runs, among these ranks.

    Attributes
    ----------
    configuration : of the compressor
    exchange : the one that runs
    placement : of the ranks
    """

    configuration: Configuration
    exchange: Exchange
    placement: Placement

    @property
    def kinds(self) -> tuple[str, ...]:
        """Its collectives, in order, by the names of ``messages.message``."""
        phases = self.exchange.phases(self.configuration.selector, self.placement.world_size)
        return (LOCAL, *phases[1:]) if self.exchange.sums_first else tuple(phases)

    @property
    def header_bytes(self) -> float:
        """What a rank receives however little is sent."""
        return overhead_bytes(0) * self._others

    def late(self, lines: Mapping[str, Line]) -> Line:
        """Of the collectives behind the first, by those of all."""
        return one_after_another([lines[kind] for kind in self.kinds[1:]])

    def received(self, numel: int, brought: float) -> tuple[float, float]:
        """Bytes of a tensor that a rank receives in the first collective, and in those behind it.

        brought : what a rank was seen to send of it, where a message is one allgather; else the
            exchange's formula counts
        """
        if self.exchange.is_one_allgather:
            each = brought or expected_bytes(self.configuration, numel)
            return (each + overhead_bytes(1) - overhead_bytes(0)) * self._others, 0.0
        density = self.configuration.density(LONG_RUN) or UNKNOWN_DENSITY
        inbound = inbound_bytes(self.configuration, self.exchange, self.placement, numel, density)
        return by_collective(self.exchange, len(self.kinds), self.placement, numel, inbound)

    def messages(self, numel: int) -> float:
        """How many times the entries that it sends a rank adds up, its own among them: as
        ``autotune.costmodel.predict`` counts."""
        density = self.configuration.density(LONG_RUN) or UNKNOWN_DENSITY
        inbound = inbound_bytes(self.configuration, self.exchange, self.placement, numel, density)
        return 1.0 + inbound / expected_bytes(self.configuration, numel)

    @property
    def _others(self) -> int:
        return max(1, self.placement.world_size - 1)


def expected_bytes(configuration: Configuration, numel: int) -> float:
    """What a rank sends of a tensor behind any warm-up, where no measured step sent it sparse."""
    density = configuration.density(LONG_RUN) or UNKNOWN_DENSITY
    return float(
        count_from_density(numel, density) * configuration.codec.entry_bytes(numel, density)
    )


def route_of(configuration: Configuration, collective: Collective) -> Route:
    """Every rank on a node of its own, for exchanges to which nodes do not matter."""
    return Route(
        configuration,
        configuration.exchange,
        in_nodes_of(1, collective.rank, collective.world_size),
    )
