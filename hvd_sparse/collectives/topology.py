"""Placement of ranks on nodes, for exchanges in two levels."""

from __future__ import annotations

import os
from dataclasses import dataclass


def is_elastic() -> bool:
    """Return whether this is an elastic run, in which Horovod may add, remove and move ranks."""
    return os.environ.get("HOROVOD_ELASTIC") == "1"


@dataclass(frozen=True)
class Placement:
    """This process's rank, and a number for the node of every rank."""

    rank: int
    nodes: tuple[int, ...]

    @property
    def world_size(self) -> int:
        return len(self.nodes)

    @property
    def node_count(self) -> int:
        return len(set(self.nodes))

    def mates(self, rank: int) -> list[int]:
        """Return the ranks that share a node with ``rank``, itself included, ascending."""
        return [other for other, node in enumerate(self.nodes) if node == self.nodes[rank]]

    def part(self, rank: int, numel: int) -> slice:
        """Return a rank's part of a vector that is divided evenly among the ranks of its node.

        Lengths of parts differ by at most one entry.
        """
        mates = self.mates(rank)
        number, size = mates.index(rank), len(mates)
        return slice(numel * number // size, numel * (number + 1) // size)


def in_nodes_of(ranks_per_node: int, rank: int, world_size: int) -> Placement:
    """Return a placement of consecutive ranks on nodes; the last node may have fewer."""
    return Placement(rank, tuple(other // ranks_per_node for other in range(world_size)))
