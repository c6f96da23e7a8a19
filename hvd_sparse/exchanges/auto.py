from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.checks import check_number, check_whole, option
from hvd_sparse.collectives.contract import Placement, in_nodes_of
from hvd_sparse.exchanges.contract import Exchange
from hvd_sparse.registry import EXCHANGES


@EXCHANGES.register("auto")
@dataclass(frozen=True)
class Auto(Exchange):
    """Choose the exchange with the shortest predicted time, before the first step and, in elastic
    runs, whenever the ranks have changed.

        time of a step = phases * buckets * latency + bytes received by a node / bandwidth

    A phase is one collective. The prediction uses only numbers that are equal on all ranks, so that
    all ranks choose the same exchange: the options below, the density after warm-up, the codec's
    bytes per entry, the tensors, the number of ranks and their nodes. ``stats()["exchange"]`` names
    the chosen exchange.

    Parameters
    ----------
    latency_ms : time of a collective with an empty message, in milliseconds. The default, 1, is
        Horovod's default cycle time
    bandwidth_gbit : bandwidth of a node's network, in Gbit/s
    ranks_per_node : as for ``hierarchical``. None asks Horovod for the number. If Horovod does not
        know, every rank counts as a node

    Notes
    -----
    Exchanges that lose entries are not considered. ``shared_index`` is considered only with
    selectors that find the same indices on all ranks, for example ``random_k`` with a shared seed.
    With other selectors, the accuracy of ``shared_index`` depends on how similar the ranks'
    gradients are.
    """

    latency_ms: float = option(check_number, 1.0, low=0)
    bandwidth_gbit: float = option(check_number, 1.0, low=0)
    ranks_per_node: int | None = option(check_whole, None, least=1)

    needs_nodes: ClassVar[bool] = True
    varies_phases: ClassVar[bool] = True
    needs_host: ClassVar[str] = "may choose an exchange that reads the vector on the host"

    def placement(self, rank: int, world_size: int, nodes: tuple[int, ...] | None) -> Placement:
        if self.ranks_per_node is None and nodes is not None:
            return Placement(rank, nodes)
        return in_nodes_of(self.ranks_per_node or 1, rank, world_size)

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return math.inf  # another exchange takes its place before the first step
