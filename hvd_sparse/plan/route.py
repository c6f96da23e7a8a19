"""The collectives of a message, and the bytes that a rank receives in each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.plan.costmodel.lines import Line, one_after_another
from hvd_sparse.plan.timed_collectives import LOCAL
from hvd_sparse.schedules.contract import LONG_RUN, UNKNOWN_DENSITY
from hvd_sparse.types import TensorSpec
from hvd_sparse.wire.message import overhead_bytes


@dataclass(frozen=True)
class Route:
    """The collectives of an exchange among given ranks.

    Attributes
    ----------
    configuration : the compressor's configuration
    exchange : the exchange in use
    placement : the node of every rank
    """

    configuration: Configuration
    exchange: Exchange
    placement: Placement

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of the collectives in order, for ``timed_collective``."""
        phases = self.exchange.phases(self.configuration.selector, self.placement.world_size)
        return (LOCAL, *phases[1:]) if self.exchange.sums_first else tuple(phases)

    @property
    def header_bytes(self) -> float:
        """The bytes of headers that a rank receives per message."""
        return overhead_bytes(0) * self._others

    def late(self, lines: Mapping[str, Line]) -> Line:
        """Return the cost of the collectives after the first.

        Parameters
        ----------
        lines : cost of every kind of collective
        """
        return one_after_another([lines[kind] for kind in self.kinds[1:]])

    def received(self, numel: int, brought: float) -> tuple[float, float]:
        """Return the bytes that a rank receives for a tensor.

        Parameters
        ----------
        numel : entries of the tensor
        brought : measured bytes that a rank sends of it, or 0 if unknown; used for exchanges of one
            allgather, while others use the exchange's formula

        Returns
        -------
        Bytes in the first collective, and bytes in the collectives after it
        """
        if self.exchange.is_one_allgather:
            each = brought or expected_bytes(self.configuration, numel)
            return (each + overhead_bytes(1) - overhead_bytes(0)) * self._others, 0.0
        density = self.configuration.density(LONG_RUN) or UNKNOWN_DENSITY
        real = count_from_density(numel, density) / numel
        entry_bytes = self.configuration.codec.entry_bytes(numel, density)
        inbound = float(self.exchange.inbound(real, entry_bytes, self.placement)) * numel
        if self.exchange.sums_first:
            return numel * self.exchange.inside(self.placement), inbound
        first = inbound / len(self.kinds)  # divided evenly among the collectives
        return first, inbound - first

    @property
    def _others(self) -> int:
        return max(1, self.placement.world_size - 1)


def expected_bytes(
    configuration: Configuration, numel: int, spec: TensorSpec | None = None
) -> float:
    """Return the bytes that a rank sends for a tensor of ``numel`` entries after warm-up.

    It replaces a measurement if no measured step sent the tensor sparse.
    """
    density = configuration.density(LONG_RUN, spec) or UNKNOWN_DENSITY
    return float(
        count_from_density(numel, density) * configuration.codec.entry_bytes(numel, density)
    )
