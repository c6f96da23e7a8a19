"""The stretches in which a loop goes over a vector."""

from __future__ import annotations

from numba import njit

SEGMENT = 2048
"""Entries between two looks at how full the list is.

Also how many magnitudes are added up in the data's dtype before the sum goes into a float64."""

SPARE = SEGMENT + 16
"""Room in a list beyond its capacity: a segment, and the rest of a vector written behind it."""


@njit
def whole_end(x, start, stop):  # type: ignore[no-untyped-def]
    """Return the end of the last whole vector of [start, stop)."""
    lanes = 64 // x.itemsize
    return start + (stop - start) // lanes * lanes
