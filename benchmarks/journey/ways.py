"""What is followed, alike in both frameworks, and which of the steps stands for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from benchmarks.journey.recorder import Call

OPTIONS: dict[str, Any] = {"density": 0.001, "exchange": "allgather", "engine": "numba"}
WIDTH = 256
"""Of the square matrices that are compressed."""
WARM = 40
"""Steps before those that are recorded, until thresholds and caches are as in a long training."""
RECORDED = 15
"""Steps."""


def described(ways: Sequence[list[Call]]) -> dict[str, Any]:
    """Return the first way of the usual length, for all recorded steps; JSON-able."""
    lengths = [len(way) for way in ways]
    if not lengths or not min(lengths):
        raise AssertionError("nothing of the package was called where its work was expected")
    often = Counter(lengths).most_common(1)[0][0]
    way = next(way for way in ways if len(way) == often)
    return {"fewest": min(lengths), "most": max(lengths), "way": [astuple(call) for call in way]}
