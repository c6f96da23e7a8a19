"""Ranks and nodes of Horovod's process sets, independent of the framework."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar, Protocol


class ProcessSet(Protocol):
    """The part of Horovod's process set that collectives use."""

    ranks: list[int] | None

    def rank(self) -> int:
        """Return this process's rank in the set; raise ValueError if it is not a member."""

    def size(self) -> int:
        """Return the number of ranks in the set."""


class ProcessSetRanks:
    """Base class of collectives over a Horovod process set: rank, size, nodes and root."""

    horovod: ClassVar[ModuleType]
    """Horovod's module for the framework."""

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set

    @property
    def rank(self) -> int:
        return int(self.process_set.rank())

    @property
    def world_size(self) -> int:
        return int(self.process_set.size())

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """The node of every rank; None if nodes have unequal numbers of ranks.

        Horovod gives each process only its own local and cross rank, so the other ranks' nodes are
        computed from its numbering. If processes disagree, the handshake raises an error.
        """
        hvd = self.horovod
        if not hvd.is_homogeneous():
            return None
        size, local = int(hvd.size()), int(hvd.local_size())
        by_node = hvd.rank() == hvd.cross_rank() * local + hvd.local_rank()
        nodes = [rank // local if by_node else rank % hvd.cross_size() for rank in range(size)]
        ranks = self.process_set.ranks
        return tuple(nodes if ranks is None else [nodes[rank] for rank in ranks])

    def global_rank(self, rank: int) -> int:
        """Return a rank's number among all processes, as Horovod needs for a broadcast's root."""
        ranks = self.process_set.ranks
        return rank if ranks is None else int(ranks[rank])


def rank_in(process_set: ProcessSet) -> int:
    """Return this process's rank in a process set, or -1 if it is not a member."""
    try:
        return int(process_set.rank())
    except ValueError:  # not a member
        return -1
