"""Kernels of the codecs, as methods over the compiled loops of ``packing``."""

from __future__ import annotations

import numpy as np

from hvd_sparse.core.kernels.float16 import as_float32
from hvd_sparse.core.kernels.numba import packing
from hvd_sparse.core.kernels.packing import blocks_of


class CompiledPackers:
    """Compiled kernels of the codecs.  Implements ``core.kernels.packing.Packers``."""

    def count_blocks(self, indices: np.ndarray, numel: int) -> np.ndarray:
        """Return the count of indices of every block, as ``Packers`` says."""
        counts = np.empty(blocks_of(numel), np.int64)
        packing.count_blocks(indices, counts)
        return counts

    def join_blocks(self, counts: np.ndarray, positions: np.ndarray) -> np.ndarray | None:
        """Return the indices of counts and positions, as ``Packers`` says."""
        indices = np.empty(positions.size, np.uint32)
        return (
            indices if packing.join_blocks(_native(counts), _native(positions), indices) else None
        )

    def half_codes(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write the values as float16, as ``Packers`` says."""
        floats, codes = as_float32(values), _suiting(out)
        packing.half_codes(floats, floats.view(np.uint32), codes)
        if codes is not out:
            out[:] = codes

    def half_values(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the values of float16 codes, as ``Packers`` says."""
        values = np.empty(codes.size, np.float32)
        return (
            values if packing.half_values(_native(codes), values.view(np.uint32), values) else None
        )

    def brain_codes(self, values: np.ndarray, out: np.ndarray) -> None:
        """Write the values as bfloat16, as ``Packers`` says."""
        codes = _suiting(out)
        packing.brain_codes(as_float32(values).view(np.uint32), codes)
        if codes is not out:
            out[:] = codes

    def brain_values(self, codes: np.ndarray) -> np.ndarray | None:
        """Return the values of bfloat16 codes, as ``Packers`` says."""
        values = np.empty(codes.size, np.float32)
        return values if packing.brain_values(_native(codes), values.view(np.uint32)) else None


def _suiting(out: np.ndarray) -> np.ndarray:
    """Return the array, or another of its size where compiled code cannot write to it."""
    return (
        out
        if out.flags.aligned and out.dtype.isnative
        else np.empty(out.size, out.dtype.newbyteorder("="))
    )


def _native(array: np.ndarray) -> np.ndarray:
    """Return the array at an aligned address, in the machine's own byte order.

    Parts of messages may begin anywhere.
    """
    if array.flags.aligned and array.dtype.isnative:
        return array
    return np.require(array, array.dtype.newbyteorder("="), "A")
