"""Facts about Horovod's process sets, the same for every framework."""

from __future__ import annotations

from types import ModuleType
from typing import ClassVar, Protocol


class ProcessSet(Protocol):
    """The part of Horovod's process set that collectives use."""

    ranks: list[int] | None

    def rank(self) -> int:
        """Return this process's rank in the set; raise ValueError outside of it."""

    def size(self) -> int:
        """Return the number of ranks in the set."""


class ProcessSetRanks:
    """Base of the collectives over one of Horovod's process sets: rank, size, nodes and root.

    Attributes
    ----------
    horovod : the module of the framework
    process_set : the one that collectives run in
    """

    horovod: ClassVar[ModuleType]

    def __init__(self, process_set: ProcessSet) -> None:
        self.process_set = process_set

    @property
    def rank(self) -> int:
        """Return this process's rank in the process set."""
        return int(self.process_set.rank())

    @property
    def world_size(self) -> int:
        """Return the number of ranks in the process set."""
        return int(self.process_set.size())

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """Return the node of every rank; None where nodes have unequally many ranks.

        Horovod tells every process its own place only. A process whose place does not fit ranks
        numbered node by node gives other nodes than the others do, which the handshake finds.
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
        """Return the rank among all processes, by which Horovod names the root of a broadcast."""
        ranks = self.process_set.ranks
        return rank if ranks is None else int(ranks[rank])


def rank_in(process_set: ProcessSet) -> int:
    """Return this rank's number in a process set; -1 outside of it."""
    try:
        return int(process_set.rank())
    except ValueError:  # Horovod's, for ranks that are not in it
        return -1
