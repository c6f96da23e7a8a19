"""Collectives of given lengths, to be timed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hvd_sparse.collectives.contract import Collective, Pending

LOCAL = "local"
"""Kind of an alltoall among the ranks of one node."""
SCALE = 1e-3
"""Scale of the random operands of an allreduce."""


@dataclass(frozen=True)
class TimedCollective:
    """A collective of a given length.

    Attributes
    ----------
    received : bytes that a rank receives, by the planner's formulas; an allreduce in a ring moves
        everything twice
    start : function that starts the collective under a name
    """

    received: float
    start: Callable[[str], Pending]


def timed_collective(
    collective: Collective, kind: str, nbytes: int, mates: Sequence[int] = ()
) -> TimedCollective:
    """Return a collective in which every rank submits about ``nbytes`` bytes.

    Parameters
    ----------
    collective : the ranks' collectives
    kind : "allgather", "allreduce", "alltoall" or "local"
    nbytes : bytes that a rank submits
    mates : ranks of this rank's node, including itself, for "local"
    """
    ranks = collective.world_size
    others = max(1, ranks - 1)  # a single rank counts as two
    if kind == "allgather":
        return TimedCollective(
            others * nbytes, partial(collective.allgather, np.zeros(nbytes, np.uint8))
        )
    if kind == "allreduce":
        values = np.random.default_rng(0).laplace(0.0, SCALE, max(1, nbytes // 4))
        values = values.astype(np.float32)
        received = 2 * values.nbytes * others / max(2, ranks)
        return TimedCollective(received, partial(collective.allreduce, values))
    splits = np.zeros(ranks, np.int64)
    partners = list(mates) if kind == LOCAL else list(range(ranks))
    splits[partners] = max(1, nbytes // len(partners))
    parts = np.zeros(int(splits.sum()), np.uint8)
    received = float(splits.max()) * max(1, len(partners) - 1)
    return TimedCollective(received, partial(collective.alltoall, parts, splits))
