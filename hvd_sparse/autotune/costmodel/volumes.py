"""Bytes and entries that a compressed step moves, by the formulas of exchange and codec."""

from __future__ import annotations

import numpy as np

from hvd_sparse.autotune.costmodel.costs import Numbers
from hvd_sparse.autotune.costmodel.instance import Instance
from hvd_sparse.autotune.costmodel.network import Setting
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.checks import count_from_density
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.schedules.contract import LONG_RUN
from hvd_sparse.types import TensorSpec


def exchange_of(configuration: Configuration, profile: Profile, setting: Setting) -> Exchange:
    """Return the exchange that runs: the one that ``auto`` chooses, where that is configured."""
    numel, layers = profile.compressed.numel, len(profile.layers)
    return configuration.resolve_exchange(setting.placement, numel, layers)


def density_of(configuration: Configuration, spec: TensorSpec | None = None) -> float:
    """Return the density behind any warm-up.

    Parameters
    ----------
    configuration : the compressor's
    spec : a tensor; None for the mean, where each has its own

    Raises
    ------
    InvalidOption
        If the method takes no density.
    """
    density = configuration.density(LONG_RUN, spec)
    if density is None:
        raise InvalidOption(
            f"{configuration.selector.id} is told no density: how much it sends cannot be predicted"
        )
    return density


def inbound_bytes(
    configuration: Configuration,
    exchange: Exchange,
    placement: Placement,
    numel: int,
    density: float,
) -> float:
    """Return the bytes that a node receives of a tensor in a step; at least one entry is sent.

    Parameters
    ----------
    configuration : its codec counts
    exchange : the one that runs
    placement : the node of every rank
    numel : entries of the tensor
    density : in (0, 1]
    """
    real = count_from_density(numel, density) / numel
    entry_bytes = configuration.codec.entry_bytes(numel, density)
    return float(exchange.inbound(real, entry_bytes, placement)) * numel


def by_collective(
    exchange: Exchange, collectives: int, placement: Placement, numel: Numbers, inbound: Numbers
) -> tuple[Numbers, Numbers]:
    """Return the bytes that the first collective brings, and the bytes of those behind it.

    Every collective brings the same number, except in exchanges that sum first.

    Parameters
    ----------
    exchange : the one that runs
    collectives : their number
    placement : the node of every rank
    numel : entries of a tensor, or float64 [tensors]
    inbound : bytes that all collectives bring by ``inbound_bytes``, or float64 [tensors]
    """
    if exchange.sums_first:
        return numel * exchange.inside(placement), inbound
    first = inbound / collectives
    return first, inbound - first


def received_entries(
    instance: Instance, configuration: Configuration, exchange: Exchange, setting: Setting
) -> float:
    """Return the number of entries that a rank adds up in a step.

    They are those that came over the wire, by their bytes, and its own.
    """
    nbytes = float(np.sum(instance.late_nbytes)) + (
        0.0 if exchange.sums_first else float(np.sum(instance.nbytes))
    )
    sent = float(np.sum(instance.sent))
    density = max(sent / max(float(np.sum(instance.numel)), 1.0), 1e-9)
    typical = int(np.sum(instance.numel)) // instance.size
    return float(
        nbytes / configuration.codec.entry_bytes(max(1, typical), min(1.0, density)) + sent
    )
