"""Search for the bit pattern of the count-th largest magnitude of a long vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hvd_sparse.kernels.numba.counts import CUTS

SHORT = 1 << 15
"""Entries of a vector that is copied and put in order faster than it is counted."""

SAMPLE = 1 << 13
"""Entries of the sample that tells about where the wanted magnitude lies."""

PATTERNS = {np.dtype(np.float32): np.int32, np.dtype(np.float64): np.int64}
"""Integer types of the bit patterns, which are ordered as the magnitudes are."""


class Found(NamedTuple):
    """The end of a search.

    Attributes
    ----------
    pattern : the least that is needed: ``count`` entries or more reach it
    above : fewer than ``count`` reach it; if the search is complete it is the next one, or the same
        where there are fewer non-zeros than ``count``
    candidates : how many entries reach ``pattern``, where they are few enough to be put in order;
        else None, and the search is complete
    """

    pattern: int
    above: int
    candidates: int | None


def search(x: np.ndarray, count: int, reached: Callable[[np.ndarray], np.ndarray]) -> Found:
    """Return the pattern that ``count`` magnitudes reach.

    The first pass tries the pattern that a sample has there, which settles most vectors, those of a
    few values too. Every other pass divides by eight the range that the pattern lies in, so that
    there are at most 12 passes of float32 and 22 of float64, whatever the data.

    Parameters
    ----------
    count : from 1 to the size of x
    reached : returns how many entries of x reach each of ``CUTS`` ascending patterns
    """
    low, above, few = 1, _infinity(x.dtype) + 1, 4 * count + SHORT
    cuts = _likely_cuts(x, count)
    while above > low + 1:
        counts = reached(cuts)
        enough = int(np.count_nonzero(counts >= count))  # of the cuts, which ascend
        if enough:
            low = int(cuts[enough - 1])
            if counts[enough - 1] <= few:
                return Found(low, above, int(counts[enough - 1]))
        above = int(cuts[enough]) if enough < cuts.size else above
        cuts = low + (above - low) * np.arange(1, CUTS + 1) // (CUTS + 1)
        cuts = np.maximum(cuts, low + 1)  # near the end several are the same
    return Found(low, above, None)


def _likely_cuts(x: np.ndarray, count: int) -> np.ndarray:
    """Return ascending bit patterns around that of the count-th largest magnitude of a sample.

    Each pattern comes with the next higher one, so that a value that many entries share is found at
    once.
    """
    # Strided: about as good as drawn at random for this, and the same on every run.
    sample = np.abs(x[:: max(1, x.size // SAMPLE)])
    patterns = np.sort(
        np.where(np.isnan(sample), 0, sample).view(PATTERNS[x.dtype]).astype(np.intp)
    )[::-1]
    rank = sample.size * count / x.size
    # The rank in a sample scatters by its square root: the cuts stand on both sides of it.
    margin = 4 * np.sqrt(rank) + 2
    ranks = np.clip(np.array([rank + margin, rank, rank - margin], np.intp), 0, sample.size - 1)
    cuts = np.concatenate([[1], *([pattern, pattern + 1] for pattern in patterns[ranks])])
    return np.sort(np.clip(cuts, 1, _infinity(x.dtype)))


def _infinity(dtype: np.dtype) -> int:
    """Return the bit pattern of infinity."""
    return int(np.array(np.inf, dtype).view(PATTERNS[dtype]))
