"""What Horovod's process sets tell, the same for every framework."""

from __future__ import annotations

from typing import Any


class ProcessSetRanks:
    """Rank, size and root of a collective over one of Horovod's process sets."""

    def __init__(self, process_set: Any) -> None:
        self.process_set = process_set

    @property
    def rank(self) -> int:
        return int(self.process_set.rank())

    @property
    def world_size(self) -> int:
        return int(self.process_set.size())

    def global_rank(self, rank: int) -> int:
        """Horovod names the root of a broadcast by its rank among all processes."""
        ranks = self.process_set.ranks
        return rank if ranks is None else int(ranks[rank])
