"""Hierarchical exchange: dense inside a node, sparse between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_whole
from hvd_sparse.collectives.contract import AllGather
from hvd_sparse.collectives.topology import Placement, in_nodes_of, is_elastic
from hvd_sparse.errors import InvalidOption
from hvd_sparse.exchanges._entries import read_values, write_values
from hvd_sparse.exchanges.context import ExchangeContext
from hvd_sparse.exchanges.contract import DENSE_BYTES, Conversation, Exchange
from hvd_sparse.exchanges.members import BEYOND_RANGE, Arrival
from hvd_sparse.kernels.finite import is_finite
from hvd_sparse.registry import EXCHANGES
from hvd_sparse.selectors.contract import Selector


@EXCHANGES.register("hierarchical")
@dataclass(frozen=True)
class Hierarchical(Exchange):
    """Sum a node's gradients, dense, then select from the sums and exchange those.

        alltoall    inside a node, every rank gets its part of all gradients and adds them up, in
                    rank order
        allgather   every rank selects from its part's sum, and all get all selections
        received:   inside the node numel (L - 1) / L values a rank; into a node, by a ring,
                    (M - 1 / L) * k entries, with L ranks on each of M nodes

    A tensor is divided evenly among a node's ranks, and each keeps the residual of its part alone:
    a residual takes 1 / L of the memory, a selection 1 / L of the time, and k is divided like the
    tensor.

    Parameters
    ----------
    ranks_per_node : consecutive ranks that share a node; None asks Horovod, which wants as many on
        every node

    Notes
    -----
    On one node all steps run dense (unless ``allow_dense=False``), which is said once. On a dense
    step every rank's residual of its part goes along. Not for elastic runs: residuals lie where
    ranks were when they were written.

    Departs from two-level schemes with a leader and process sets: no rank does more than another,
    and the collectives are those of all ranks, in which other nodes' ranks exchange nothing.
    """

    ranks_per_node: int | None = None

    sums_first: ClassVar[bool] = True
    needs_nodes: ClassVar[bool] = True
    needs_host: ClassVar[str] = "sums whole gradients before anything is selected"

    def __post_init__(self) -> None:
        if self.ranks_per_node is not None:
            check_whole(self.ranks_per_node, "ranks_per_node of Hierarchical", 1)

    def placement(
        self, rank: int, world_size: int, nodes: tuple[int, ...] | None
    ) -> Placement | None:
        if is_elastic():
            raise InvalidOption(
                "exchange hierarchical keeps residuals where ranks are, and an elastic run moves "
                "them: use another exchange"
            )
        if self.ranks_per_node is not None:
            return in_nodes_of(self.ranks_per_node, rank, world_size)
        if nodes is None:
            raise InvalidOption(
                "which ranks share a node is not known here (as many on every node, numbered node "
                "by node, would be): "
                "say how many with exchange={'id': 'hierarchical', 'ranks_per_node': ...}"
            )
        return Placement(rank, nodes)

    def phases(self, selector: Selector, world_size: int) -> tuple[str, ...]:
        return ("alltoall", "allgather")

    def inbound(self, density: float, entry_bytes: float, placement: Placement) -> float:
        return (
            (placement.world_size - 1)
            * placement.node_count
            / placement.world_size
            * density
            * entry_bytes
        )

    def inside(self, placement: Placement) -> float:
        return DENSE_BYTES * (1 - placement.node_count / placement.world_size)

    def run(self, context: ExchangeContext) -> Conversation:
        placement = context.placement
        assert placement is not None
        mates = placement.mates(context.rank)
        # An alltoall of all ranks, in which nothing passes between nodes: no process set is needed.
        received = yield context.to_each(
            [
                _part(context, placement, r) if r in mates else None
                for r in range(context.world_size)
            ]
        )
        frames: dict[int, np.ndarray] = {}
        with context.guarded():
            arrived = context.read(received, mates)
            for position, member in context.members.items():
                part = member.part
                # In rank order, so that a run can be repeated bit for bit.
                total = np.zeros(part.stop - part.start, member.spec.accumulator)
                for message in arrived:
                    with np.errstate(over="ignore", invalid="ignore"):  # is_finite looks
                        total += read_values(message.frame(position), total.size, total.dtype)
                if is_finite(total):  # else this rank sends no frame, which tells all ranks
                    frames[position] = context.select(position, total)
        gathered = yield AllGather(context.write(frames))
        arrived = context.read(gathered)
        context.finish()
        return {
            position: Arrival(
                tuple(
                    (placement.part(r, member.spec.numel), m.frame(position))
                    for r, m in enumerate(arrived)
                )
            )
            if all(position in message.framed for message in arrived)
            else BEYOND_RANGE
            for position, member in context.members.items()
        }


def _part(context: ExchangeContext, placement: Placement, rank: int) -> dict[int, np.ndarray]:
    """Return the frames that a rank of this node is to add up."""
    frames = {}
    for position, member in context.members.items():
        gradient = member.outgoing.accumulated
        if gradient is not None:
            frames[position] = write_values(gradient[placement.part(rank, member.spec.numel)])
    return frames
