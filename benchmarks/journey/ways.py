"""Settings that both frameworks share, and the choice of a typical step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from benchmarks.journey.recorder import Call

OPTIONS: dict[str, Any] = {"density": 0.001, "exchange": "allgather", "engine": "numba"}
WIDTH = 256
"""Rows and columns of the compressed matrices."""
WARM = 40
"""Steps before the recorded ones, after which thresholds and caches are as in a long training."""
RECORDED = 15
"""Number of recorded steps."""


def described(ways: Sequence[list[Call]]) -> dict[str, Any]:
    """Return the first list of calls with the most frequent length, and the range of lengths."""
    lengths = [len(way) for way in ways]
    if not lengths or not min(lengths):
        raise AssertionError("nothing of the package was called where its work was expected")
    often = Counter(lengths).most_common(1)[0][0]
    way = next(way for way in ways if len(way) == often)
    return {"fewest": min(lengths), "most": max(lengths), "way": [astuple(call) for call in way]}
