"""Kernels of the codecs: numbers made shorter and indices cut into blocks, and back.

``Packers`` is the contract, beside ``kernels.contract``, whose rules hold here too; the
functions state it in numpy. All vectors are 1-D and C-contiguous. Readers may be given anybody's
bytes, so they report what no writer makes.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from hvd_sparse.kernels.float16 import brain_codes, brain_values, half_codes, half_values
from hvd_sparse.kernels.gaps import (
    bytes_from,
    join_gaps,
    join_thirds,
    pack_unary,
    put_bytes,
    split_gaps,
    split_thirds,
    unpack_unary,
)
from hvd_sparse.kernels.levels import (
    largest_magnitude,
    level_codes,
    level_values,
    multiples,
    pack_few,
    sum_on_grid,
    unpack_few,
)

__all__ = [
    "Packers",
    "brain_codes",
    "brain_values",
    "bytes_from",
    "count_blocks",
    "half_codes",
    "half_values",
    "join_blocks",
    "join_gaps",
    "join_thirds",
    "largest_magnitude",
    "level_codes",
    "level_values",
    "multiples",
    "pack_few",
    "pack_unary",
    "put_bytes",
    "split_gaps",
    "split_thirds",
    "sum_on_grid",
    "unpack_few",
    "unpack_unary",
]

BLOCK_BITS = 16
BLOCK = 1 << BLOCK_BITS
"""Entries in a block."""


class Packers(Protocol):
    """The functions of an engine for codecs."""

    def count_blocks(self, indices: np.ndarray, numel: int, bits: int = BLOCK_BITS) -> np.ndarray:
        """Return the count of indices of every block of 2^bits entries, int64 [blocks].

        Parameters
        ----------
        indices : uint32 [count], ascending
        numel : entries of the tensor
        bits : at most 16
        """

    def join_blocks(
        self, counts: np.ndarray, positions: np.ndarray, bits: int = BLOCK_BITS
    ) -> np.ndarray | None:
        """Return the indices again, uint32 [count]; None unless they ascend.

        Parameters
        ----------
        counts : uint16 or uint32 [blocks], with the sum [count]
        positions : uint16 [count], within their blocks
        bits : as above
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

    def largest_magnitude(self, values: np.ndarray) -> float:
        """Return the largest magnitude; 0 of no values."""

    def multiples(self, values: np.ndarray, step: float, most: int) -> np.ndarray:
        """Return float32 or float64 values in multiples of a step, ties to even, int8 [count].

        Parameters
        ----------
        step : above 0, exact in float32
        most : the largest multiple that is written, at most 127
        """

    def sum_on_grid(self, values: np.ndarray, scale: float, above: int) -> tuple[int, int]:
        """Return count and sum of the magnitudes beyond ``above``, in multiples of ``1 / scale``.

        Multiples are rounded down, and are 1 to 2^26 - 1, or 2^26 where float32 rounds to it.

        Parameters
        ----------
        values : float32 or float64, without zeros
        scale : a power of two
        above : a multiple; 0 for all
        """

    def level_codes(self, values: np.ndarray, scale: float, above: int) -> np.ndarray:
        """Return a value's sign, and twice whether it is beyond ``above`` as ``sum_on_grid`` counts
        it, uint8 [count]."""

    def level_values(
        self, codes: np.ndarray, low: float, high: float, dtype: np.dtype
    ) -> np.ndarray:
        """Return low, -low, high or -high for codes 0 to 3.

        Parameters
        ----------
        codes : uint8 [count], below 4
        low, high : exact in float32
        dtype : of the values, float32 or float64
        """

    def pack_few(self, numbers: np.ndarray, width: int) -> np.ndarray:
        """Return the low 2 or 4 bits of uint8 numbers in bytes, the first in the lowest bits; the
        last byte is filled up with zeros."""

    def unpack_few(self, packed: np.ndarray, width: int, count: int) -> np.ndarray | None:
        """Return numbers of 2 or 4 bits again, uint8 [count].

        None if the bits that fill up the last byte are not zero.

        Parameters
        ----------
        packed : uint8, as many as ``count`` numbers take
        """

    def split_gaps(
        self, indices: np.ndarray, shift: int, has_thirds: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the entries between each index and the one before it, modulo a number and divided
        by it, uint32 [count] each.

        Parameters
        ----------
        indices : uint32 [count], ascending
        shift, has_thirds : the number is 2^shift, or 3 * 2^shift, below 2^32
        """

    def join_gaps(
        self, rests: np.ndarray, quotients: np.ndarray, modulus: int, numel: int
    ) -> np.ndarray | None:
        """Return the indices again, uint32 [count]; None if the last is not below ``numel``.

        Parameters
        ----------
        rests, quotients : uint32 [count]; any, if the indices stay below 2^63; the rests may be
            overwritten
        """

    def bytes_from(self, numbers: np.ndarray, shift: int) -> np.ndarray:
        """Return the 8 bits of uint32 numbers from a place on, uint8 [count]."""

    def put_bytes(self, numbers: np.ndarray, bits: np.ndarray, shift: int) -> None:
        """Set the bits of uint8 [count] in uint32 numbers, from a place on."""

    def pack_unary(self, numbers: np.ndarray) -> np.ndarray:
        """Return a bit string, uint8: for every number, uint32, as many zeros and then a one.

        The first bit is the lowest; the last byte is filled up with zeros.
        """

    def unpack_unary(self, packed: np.ndarray, count: int) -> np.ndarray | None:
        """Return the numbers again, uint32 [count]; None if there are fewer or more ones.

        Zeros behind the last one count for nothing.
        """

    def split_thirds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether numbers are above 0, [count], and of those that are, whether they are 2:
        uint8, 0 or 1.

        Parameters
        ----------
        numbers : uint8 [count], of 0, 1 and 2
        """

    def join_thirds(self, is_more: np.ndarray, is_two: np.ndarray) -> np.ndarray:
        """Return the numbers again, uint8 [count].

        Parameters
        ----------
        is_more : uint8 [count], 0 or 1
        is_two : uint8, 0 or 1, as many as the ones of ``is_more``
        """


def blocks_of(numel: int, bits: int = BLOCK_BITS) -> int:
    """Return the number of blocks of a tensor."""
    return -(-numel >> bits)


def count_blocks(indices: np.ndarray, numel: int, bits: int = BLOCK_BITS) -> np.ndarray:
    """Return the count of indices of every block, as ``Packers`` says."""
    counts = np.full(blocks_of(numel, bits), indices.size)
    starts = np.searchsorted(indices, _starts(counts.size, bits))
    counts[:-1] = starts[1:]
    counts -= starts
    return counts


def join_blocks(
    counts: np.ndarray, positions: np.ndarray, bits: int = BLOCK_BITS
) -> np.ndarray | None:
    """Return the indices of counts and positions, as ``Packers`` says."""
    indices = np.repeat(_starts(counts.size, bits), counts)
    indices += positions
    return indices if bool(np.all(indices[1:] > indices[:-1])) else None


def _starts(blocks: int, bits: int) -> np.ndarray:
    """Return the first index of every block, uint32 [blocks]."""
    starts = np.arange(blocks, dtype=np.uint32)
    starts <<= np.uint32(bits)
    return starts
