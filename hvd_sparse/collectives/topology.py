"""Topology: the node of every rank."""

from __future__ import annotations

import os
from dataclasses import dataclass


def is_elastic() -> bool:
    """Tell whether Horovod may start ranks anew, in other places."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


@dataclass(frozen=True)
class Placement:
    """The node of every rank, and this rank.

    Attributes
    ----------
    rank : of this process
    nodes : the node of every rank, as any number; equal where ranks share a machine
    """

    rank: int
    nodes: tuple[int, ...]

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""
        return len(self.nodes)

    @property
    def node_count(self) -> int:
        """Return the number of nodes."""
        return len(set(self.nodes))

    def mates(self, rank: int) -> list[int]:
        """Return the ranks of a rank's node, itself among them, ascending."""
        return [other for other, node in enumerate(self.nodes) if node == self.nodes[rank]]

    def part(self, rank: int, numel: int) -> slice:
        """Return a rank's part of a vector that its node's ranks divide evenly.

        Parts differ by at most one entry.
        """
        mates = self.mates(rank)
        number, size = mates.index(rank), len(mates)
        return slice(numel * number // size, numel * (number + 1) // size)


def in_nodes_of(ranks_per_node: int, rank: int, world_size: int) -> Placement:
    """Return a placement with consecutive ranks on each node, the last node with what is left."""
    return Placement(rank, tuple(other // ranks_per_node for other in range(world_size)))
