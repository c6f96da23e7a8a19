from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_whole, option
from hvd_sparse.collectives.contract import Placement, Request, in_nodes_of, is_elastic
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges.context import BEYOND_RANGE, Arrival, ExchangeContext
from hvd_sparse.exchanges.contract import Conversation, Exchange, ring
from hvd_sparse.kernels.arrays import is_finite
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.wire.frame import read_values, write_values


@EXCHANGES.register("hierarchical")
@dataclass(frozen=True)
class Hierarchical(Exchange):
    """Sum gradients densely inside a node, then select from the sums and exchange the selections.

        alltoall    inside a node, every rank receives its part of all gradients and adds them up,
                    in rank order
        allgather   every rank selects from the sum of its part; all ranks receive all selections
        received:   with L ranks on each of M nodes, a rank receives numel (L - 1) / L values from
                    its node, and a node receives (M - 1 / L) * k entries, in a ring

    A tensor, of which k entries are sent, is divided evenly among a node's L ranks. Each rank keeps
    only the residual of its part. So its residual, its selection time and its number of selected
    entries are 1 / L of those of the whole tensor.

    Parameters
    ----------
    ranks_per_node : number of consecutive ranks that share a node. None asks Horovod for the
        number, and requires that all nodes have the same number of ranks. Ranks must be numbered
        host by host, as by ``mpirun --map-by slot``; otherwise all ranks raise InvalidOption

    Notes
    -----
    On one node all steps run dense (unless ``allow_dense=False``), and a warning is logged once. On
    a dense step every rank also sends the residual of its part. The exchange raises InvalidOption
    in elastic runs, because a restart moves ranks away from the residuals of their parts. It also
    raises it for ``rollback=False``, because gradients are summed before they are in a residual, so
    a failed step would lose them.

    Other two-level schemes use a leader in every node, and process sets of Horovod. Here all ranks
    of a node do equal work, and all ranks take part in the collectives; in the alltoall, messages
    between nodes are empty.
    """

    ranks_per_node: int | None = option(check_whole, None, least=1)

    sums_first: ClassVar[bool] = True
    needs_nodes: ClassVar[bool] = True
    needs_host: ClassVar[str] = "sums whole gradients before anything is selected"

    def placement(self, rank: int, world_size: int, nodes: tuple[int, ...] | None) -> Placement:
        if is_elastic():
            raise InvalidOption(
                "exchange hierarchical divides residuals among the ranks of a node, and an elastic "
                "run changes these ranks: use another exchange"
            )
        if self.ranks_per_node is not None:
            return in_nodes_of(self.ranks_per_node, rank, world_size)
        if nodes is None:
            raise InvalidOption(
                "exchange hierarchical does not know which ranks share a node (it needs equally "
                "many on every node, numbered node by node): "
                "set exchange={'id': 'hierarchical', 'ranks_per_node': ...}"
            )
        return Placement(rank, nodes)

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return ("alltoall", "allgather")

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return ring(placement) * placement.node_count * density * entry_bytes

    def run(self, context: ExchangeContext) -> Conversation:
        placement = context.placement
        assert placement is not None
        mates = placement.mates(context.rank)
        given: list[dict[int, np.ndarray] | None] = [None] * context.world_size
        for rank in mates:
            given[rank] = {
                position: write_values(member.vector[placement.part(rank, member.spec.numel)])
                for position, member in context.members.items()
            }
        received = yield context.to_each(given)
        frames: dict[int, np.ndarray] = {}
        with context.guarded():
            arrived = context.read(received, mates)
            for position, member in context.members.items():
                part = member.part
                # Add in rank order, so that runs are reproducible bit for bit.
                total = np.zeros(part.stop - part.start, member.spec.accumulator)
                for message in arrived:
                    with np.errstate(over="ignore", invalid="ignore"):  # checked below
                        total += read_values(message.frame(position), total.size, total.dtype)
                if is_finite(total):  # otherwise the missing frame shows the overflow to all ranks
                    frames[position] = context.select(position, total)
        arrived = context.read((yield Request("allgather", context.write(frames))))
        context.finish()
        arrivals = {}
        for position, member in context.members.items():
            parts = tuple(
                (placement.part(rank, member.spec.numel), message.frames[position])
                for rank, message in enumerate(arrived)
                if position in message.frames
            )
            arrivals[position] = Arrival(parts) if len(parts) == len(arrived) else BEYOND_RANGE
        return arrivals
