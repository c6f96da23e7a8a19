"""What Horovod's process sets tell, the same for every framework."""

from __future__ import annotations

from typing import Any, ClassVar


class ProcessSetRanks:
    """Rank, size, nodes and root of a collective over one of Horovod's process sets.

    Attributes
    ----------
    horovod : the module of the framework
    """

    horovod: ClassVar[Any]

    def __init__(self, process_set: Any) -> None:
        self.process_set = process_set

    @property
    def rank(self) -> int:
        return int(self.process_set.rank())

    @property
    def world_size(self) -> int:
        return int(self.process_set.size())

    @property
    def nodes(self) -> tuple[int, ...] | None:
        """The node of every rank; None where nodes have unequally many ranks.

        Horovod tells every process its own place only: one that does not fit ranks numbered node by
        node gives other nodes than the others do, which the handshake finds.
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
        """Horovod names the root of a broadcast by its rank among all processes."""
        ranks = self.process_set.ranks
        return rank if ranks is None else int(ranks[rank])


def rank_in(process_set: Any) -> int:
    """This rank's number in a process set; -1 outside of it."""
    try:
        return int(process_set.rank())
    except ValueError:  # Horovod's, for ranks that are not in it
        return -1
