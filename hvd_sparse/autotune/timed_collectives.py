"""Collectives of given lengths, to be timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Callable

import numpy as np

from hvd_sparse.autotune.costmodel.costs import FP16, SUMS
from hvd_sparse.collectives.contract import Collective, Pending

LOCAL = "local"
"""An alltoall among the ranks of a node alone."""
SCALE = 1e-3
"""Of gradients that are summed: many of them are below float16's normal numbers, which costs its
sums time."""


@dataclass(frozen=True)
class Message:
    """A collective in which this rank submits so much.

    Attributes
    ----------
    received : bytes that a rank receives, as the planner counts them: a ring's sum passes
        everything twice
    start : of the collective, under a name
    """

    received: float
    start: Callable[[str], Pending]


def message(collective: Collective, kind: str, nbytes: int, mates: Sequence[int] = ()) -> Message:
    """Of about ``nbytes`` bytes a rank.

    kind : "allgather", one of ``autotune.costmodel.costs.SUMS``, "alltoall" or "local"
    mates : of this rank's node, itself among them, for "local"
    """
    ranks = collective.world_size
    others = max(1, ranks - 1)  # alone, as if there were another
    if kind == "allgather":
        return Message(others * nbytes, partial(collective.allgather, np.zeros(nbytes, np.uint8)))
    if kind in SUMS:
        dtype = np.dtype(np.float16 if kind == FP16 else np.float32)
        values = gradients(collective.rank, max(1, nbytes // dtype.itemsize), dtype)
        return Message(received_of_sum(values.nbytes, ranks), partial(collective.allreduce, values))
    splits = np.zeros(ranks, np.int64)
    partners = list(mates) if kind == LOCAL else list(range(ranks))
    splits[partners] = max(1, nbytes // len(partners))
    parts = np.zeros(int(splits.sum()), np.uint8)
    received = float(splits.max()) * max(1, len(partners) - 1)
    return Message(received, partial(collective.alltoall, parts, splits))


def gradients(rank: int, numel: int, dtype: Any) -> np.ndarray:
    """Values like those of gradients [numel], of this rank's own."""
    return np.random.default_rng([rank, numel]).laplace(0.0, SCALE, numel).astype(dtype)


def received_of_sum(nbytes: int, ranks: int) -> float:
    """Bytes that a rank receives in a ring's sum."""
    return 2 * nbytes * max(1, ranks - 1) / max(2, ranks)
