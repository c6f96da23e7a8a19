"""Kernels of the codecs: numbers made shorter and indices cut into blocks, and back.

``Packers`` is the contract, beside ``core.kernels.contract``, whose rules hold here too; the
functions state it in numpy. All vectors are 1-D and C-contiguous. Readers may be given anybody's
bytes, so they report what no writer makes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hvd_sparse.core.kernels.float16 import brain_codes, brain_values, half_codes, half_values

__all__ = [
    "Packers",
    "brain_codes",
    "brain_values",
    "count_blocks",
    "half_codes",
    "half_values",
    "join_blocks",
]

BLOCK = 1 << 16
"""Entries in a block."""


class Packers(Protocol):
    """The functions of an engine for codecs."""

    def count_blocks(self, indices: np.ndarray, numel: int) -> np.ndarray:
        """Return the count of indices of every block of 65,536 entries, int64 [blocks].

        Parameters
        ----------
        indices : uint32 [count], ascending
        numel : entries of the tensor
        """

    def join_blocks(self, counts: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """Return the indices again, uint32 [count]; None unless they ascend.

        Parameters
        ----------
        counts : uint16 or uint32 [blocks], with the sum [count]
        positions : uint16 [count], within their blocks
        """

    def half_codes(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write float32 or float64 values as float16, ties to even; beyond 65504 the largest of
        that sign.

        Parameters
        ----------
        out : uint16 [count], written
        """

    def half_values(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the values of float16 bit patterns, float32 [count]; None if one is NaN or Inf."""

    def brain_codes(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write float32 or float64 values as bfloat16, ties away from zero, never to infinity.

        Values below 2^-126 become zero.

        Parameters
        ----------
        out : uint16 [count], written
        """

    def brain_values(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the values of bfloat16 bit patterns, float32 [count].

        None if one is NaN, Inf or subnormal.
        """


def blocks_of(numel: int) -> int:
    """Return the number of blocks of a tensor."""
    return -(-numel // BLOCK)


def count_blocks(indices: np.ndarray, numel: int) -> np.ndarray:
    """Return the count of indices of every block, as ``Packers`` says."""
    counts = np.full(blocks_of(numel), indices.size)
    starts = np.searchsorted(indices, _starts(counts.size))
    counts[:-1] = starts[1:]
    counts -= starts
    return counts


def join_blocks(counts: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
    """Return the indices of counts and positions, as ``Packers`` says."""
    indices = np.repeat(_starts(counts.size), counts)
    indices += positions
    return indices if bool(np.all(indices[1:] > indices[:-1])) else None


def _starts(blocks: int) -> np.ndarray:
    """Return the first index of every block, uint32 [blocks]."""
    starts = np.arange(blocks, dtype=np.uint32)
    starts <<= np.uint32(16)
    return starts
