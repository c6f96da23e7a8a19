"""Collectives of given lengths, for timing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hvd_sparse.autotune.costmodel.costs import FP16, SUMS
from hvd_sparse.collectives.contract import Collective, Pending

LOCAL = "local"
"""Kind of an alltoall among the ranks of a node alone."""
SCALE = 1e-3
"""Scale of the gradients that are summed.  Many of them are below float16's normal numbers, which
costs its sums time."""


@dataclass(frozen=True)
class TimedCollective:
    """A collective of a given length.

    Attributes
    ----------
    received : bytes that a rank receives, as the planner counts them: a ring's sum passes
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
    collective : of the ranks
    kind : "allgather", one of ``autotune.costmodel.costs.SUMS``, "alltoall" or "local"
    nbytes : bytes that a rank submits
    mates : ranks of this rank's node, itself among them, for "local"
    """
    ranks = collective.world_size
    others = max(1, ranks - 1)  # a rank that is alone counts as if there were another
    if kind == "allgather":
        return TimedCollective(
            others * nbytes, partial(collective.allgather, np.zeros(nbytes, np.uint8))
        )
    if kind in SUMS:
        dtype = np.dtype(np.float16 if kind == FP16 else np.float32)
        values = gradients(collective.rank, max(1, nbytes // dtype.itemsize), dtype)
        return TimedCollective(
            received_of_sum(values.nbytes, ranks), partial(collective.allreduce, values)
        )
    splits = np.zeros(ranks, np.int64)
    partners = list(mates) if kind == LOCAL else list(range(ranks))
    splits[partners] = max(1, nbytes // len(partners))
    parts = np.zeros(int(splits.sum()), np.uint8)
    received = float(splits.max()) * max(1, len(partners) - 1)
    return TimedCollective(received, partial(collective.alltoall, parts, splits))


def gradients(rank: int, numel: int, dtype: np.dtype | type | str) -> np.ndarray:
    """Return values like those of gradients [numel], which differ between ranks."""
    return np.random.default_rng([rank, numel]).laplace(0.0, SCALE, numel).astype(dtype)


def received_of_sum(nbytes: int, ranks: int) -> float:
    """Return the bytes that a rank receives in a ring's sum of ``nbytes`` bytes."""
    return 2 * nbytes * max(1, ranks - 1) / max(2, ranks)
