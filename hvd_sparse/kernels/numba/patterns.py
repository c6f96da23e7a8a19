"""Bit patterns of magnitudes, which compare as the magnitudes do.

Patterns, not floats, are compared: a thread that takes subnormal numbers for zero must take the
same entries as any other.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import overload

from hvd_sparse.kernels.numba.vectors import Vectors


def pattern_of(entry: float) -> tuple[int, int]:
    """Return the bit pattern of a magnitude, as the vectors compare it, and that of infinity."""
    raise NotImplementedError  # numba puts the overload in its place


@overload(pattern_of)
def _pattern_by_type(entry):  # type: ignore[no-untyped-def]
    if entry == types.float32:
        return lambda entry: (
            np.intp(np.float32(entry).view(np.int32) & np.int32(0x7FFFFFFF)),
            np.intp(0x7F800000),
        )
    return lambda entry: (
        np.intp(np.float64(entry).view(np.int64) & np.int64(0x7FFFFFFFFFFFFFFF)),
        np.intp(0x7FF0000000000000),
    )


def reaching(vectors: Vectors, entry: ir.Value, cuts: ir.Value) -> ir.Value:
    """Return a mask of the entries that reach the cut; NaN never does."""
    builder, patterns = vectors.builder, vectors.patterns(entry)
    is_number = builder.icmp_signed("<=", patterns, vectors.infinity())
    return builder.and_(builder.icmp_signed(">=", patterns, cuts), is_number)
