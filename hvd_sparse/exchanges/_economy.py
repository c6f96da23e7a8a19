"""When sending everything is cheaper than sending a selection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hvd_sparse.collectives.topology import Placement

if TYPE_CHECKING:
    from hvd_sparse.exchanges.contract import Exchange

DENSE_BYTES = 4
"""An entry of a dense float32 allreduce."""

ROUNDING = 1e-12


def dense_inbound(placement: Placement) -> float:
    """Bytes that a dense ring allreduce brings into a node, for each entry of the tensor: 2 * (N -
    1) / N * 4."""
    size = placement.world_size
    return 2 * DENSE_BYTES * (size - 1) / size if placement.node_count > 1 else 0.0


def is_dense_cheaper(
    exchange: Exchange, density: float, entry_bytes: float, placement: Placement
) -> bool:
    """Whether a dense ring allreduce moves no more bytes than an exchange of selections.

    From shared quantities only, so that all ranks decide alike.  By allgather, at 8 bytes an entry
    and with every rank on a node of its own: density >= 1 / world_size.
    """
    if (
        placement.world_size == 1
    ):  # nothing moves either way, and a selection is only worth its trouble if it is small
        return density * entry_bytes >= 2 * DENSE_BYTES
    return exchange.inbound(density, entry_bytes, placement) >= dense_inbound(placement) * (
        1 - ROUNDING
    )
