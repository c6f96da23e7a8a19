"""Kernels of the codecs, as methods over the compiled loops of ``packing``."""

from __future__ import annotations

import numpy as np

from hvd_sparse.kernels.float16 import as_float32
from hvd_sparse.kernels.levels import GRID_BITS, pack_few
from hvd_sparse.kernels.numba.packers import gaps, levels, packing
from hvd_sparse.kernels.packing import BLOCK_BITS, blocks_of

MOST_ON_GRID = float((1 << GRID_BITS) - 1)
_PACKING = {4: (levels.pack_nibbles, 2, "<u2"), 2: (levels.pack_quarters, 4, "<u4")}
_UNPACKING = {4: (levels.unpack_nibbles, 2, "<u2"), 2: (levels.unpack_quarters, 4, "<u4")}


class CompiledPackers:
    """Compiled kernels of the codecs.  Implements ``kernels.packing.Packers``."""

    def count_blocks(self, indices: np.ndarray, numel: int, bits: int = BLOCK_BITS) -> np.ndarray:
        """Return the count of indices of every block, as ``Packers`` says."""
        counts = np.empty(blocks_of(numel, bits), np.int64)
        packing.count_blocks(indices, counts, bits)
        return counts

    def join_blocks(
        self, counts: np.ndarray, positions: np.ndarray, bits: int = BLOCK_BITS
    ) -> np.ndarray | None:
        """Return the indices of counts and positions, as ``Packers`` says."""
        indices = np.empty(positions.size, np.uint32)
        ascend = packing.join_blocks(_native(counts), _native(positions), indices, bits)
        return indices if ascend else None

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

    def largest_magnitude(self, values: np.ndarray) -> float:
        """Return the largest magnitude, as ``Packers`` says."""
        bits = values.view(f"u{values.itemsize}")
        magnitude = np.array(np.iinfo(bits.dtype).max >> 1, bits.dtype)
        found = levels.largest_bits(bits, magnitude[()])
        return float(np.array(found, bits.dtype).view(values.dtype))

    def multiples(self, values: np.ndarray, step: float, most: int) -> np.ndarray:
        """Return the values in multiples of a step, as ``Packers`` says."""
        found = np.empty(values.size, np.int8)
        levels.multiples(values, step, most, found)
        return found

    def sum_on_grid(self, values: np.ndarray, scale: float, above: int) -> tuple[int, int]:
        """Return count and sum of the multiples beyond a number, as ``Packers`` says."""
        count, total = levels.sum_on_grid(values, scale, MOST_ON_GRID, above)
        return count, total

    def level_codes(self, values: np.ndarray, scale: float, above: int) -> np.ndarray:
        """Return signs and levels, as ``Packers`` says."""
        codes, bits = np.empty(values.size, np.uint8), values.view(f"u{values.itemsize}")
        levels.level_codes(values, bits, scale, MOST_ON_GRID, above, codes)
        return codes

    def level_values(
        self, codes: np.ndarray, low: float, high: float, dtype: np.dtype
    ) -> np.ndarray:
        """Return the values of signs and levels, as ``Packers`` says."""
        values = np.empty(codes.size, dtype.newbyteorder("="))
        levels.level_values(codes, low, high, values)
        return values

    def pack_few(self, numbers: np.ndarray, width: int) -> np.ndarray:
        """Return numbers of 2 or 4 bits in bytes, as ``Packers`` says."""
        loop, per_byte, wide = _PACKING[width]
        whole = numbers.size // per_byte
        packed = np.empty(-(-numbers.size // per_byte), np.uint8)
        loop(_native(numbers[: whole * per_byte].view(wide)), packed[:whole])
        if whole < packed.size:
            packed[whole:] = pack_few(numbers[whole * per_byte :], width)
        return packed

    def unpack_few(self, packed: np.ndarray, width: int, count: int) -> np.ndarray | None:
        """Return the numbers again, as ``Packers`` says."""
        loop, per_byte, wide = _UNPACKING[width]
        numbers = np.empty(packed.size * per_byte, np.uint8)
        loop(packed, numbers.view(wide))
        return None if numbers[count:].any() else numbers[:count]

    def split_gaps(
        self, indices: np.ndarray, shift: int, has_thirds: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the gaps in rests and quotients, as ``Packers`` says."""
        rests, quotients = np.empty(indices.size, np.uint32), np.empty(indices.size, np.uint32)
        gaps.split_gaps(_native(indices), shift, 3 if has_thirds else 1, rests, quotients)
        return rests, quotients

    def join_gaps(
        self, rests: np.ndarray, quotients: np.ndarray, modulus: int, numel: int
    ) -> np.ndarray | None:
        """Return the indices of rests and quotients, as ``Packers`` says."""
        return rests if gaps.join_gaps(rests, quotients, modulus) < numel else None

    def bytes_from(self, numbers: np.ndarray, shift: int) -> np.ndarray:
        """Return 8 bits of every number, as ``Packers`` says."""
        out = np.empty(numbers.size, np.uint8)
        gaps.bytes_from(numbers, shift, out)
        return out

    def put_bytes(self, numbers: np.ndarray, bits: np.ndarray, shift: int) -> None:
        """Set bits of every number, as ``Packers`` says."""
        gaps.put_bytes(numbers, bits, shift)

    def pack_unary(self, numbers: np.ndarray) -> np.ndarray:
        """Return the numbers as zeros that a one ends, as ``Packers`` says."""
        bits = int(gaps.total(numbers)) + numbers.size
        words = np.zeros(bits // gaps.WORD_BITS + 2, np.uint64)
        gaps.pack_unary(numbers, words)
        return words.astype("<u8", copy=False).view(np.uint8)[: -(-bits // 8)]

    def unpack_unary(self, packed: np.ndarray, count: int) -> np.ndarray | None:
        """Return the numbers again, as ``Packers`` says."""
        words = np.zeros(-(-packed.size // 8), "<u8")
        words.view(np.uint8)[: packed.size] = packed
        places = np.empty(count + gaps.SPARE, np.uint32)
        if gaps.unpack_unary(_native(words), places, count) != count:
            return None
        numbers = places[:count]
        gaps.zeros_between(numbers)
        return numbers

    def split_thirds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return whether numbers are above 0, and which are 2, as ``Packers`` says."""
        is_more, is_two = np.empty_like(numbers), np.empty_like(numbers)
        found = gaps.split_thirds(numbers, is_more, is_two)
        return is_more, is_two[:found]

    def join_thirds(self, is_more: np.ndarray, is_two: np.ndarray) -> np.ndarray:
        """Return the numbers again, as ``Packers`` says."""
        numbers, room = np.empty_like(is_more), np.zeros_like(is_more)
        room[: is_two.size] = is_two
        gaps.join_thirds(is_more, room, numbers)
        return numbers


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
