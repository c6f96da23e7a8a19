"""Lower bounds of a selection's bytes, and the bytes of other packages by their formulas."""

from __future__ import annotations

import math

GRACE = 12
"""Bytes an entry: float32 values and int64 indices, two messages."""

SYNXLIN = {"int64 + float32": 12, "int32 + float32": 8, "int32 + float16": 6}
"""DGC's authors' later code: values and indices, two messages."""


def index_bits(density: float) -> float:
    """Return the entropy of one index of a random selection: H(density) / density."""
    if density >= 1:
        return 0.0
    rest = 1 - density
    return -(density * math.log2(density) + rest * math.log2(rest)) / density


def set_bits(count: int, numel: int) -> float:
    """Return the bits that tell one set of ``count`` indices from all others: log2(numel choose
    count)."""
    ways = math.lgamma(numel + 1) - math.lgamma(count + 1) - math.lgamma(numel - count + 1)
    return ways / math.log(2)
