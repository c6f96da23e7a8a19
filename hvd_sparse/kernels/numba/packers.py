"""Compiled kernels of the codecs, as methods that call ``packing_loops``."""

from __future__ import annotations

import numpy as np

from hvd_sparse.kernels.numba import packing_loops as loops
from hvd_sparse.kernels.packing import BLOCK_BITS, GRID_BITS, Packers, as_float32, blocks_of

MOST_ON_GRID = float((1 << GRID_BITS) - 1)
_PACKING = {4: (loops.pack_nibbles, 2, "<u2"), 2: (loops.pack_quarters, 4, "<u4")}
_UNPACKING = {4: (loops.unpack_nibbles, 2, "<u2"), 2: (loops.unpack_quarters, 4, "<u4")}


class CompiledPackers(Packers):
    def count_blocks(self, indices: np.ndarray, numel: int, bits: int = BLOCK_BITS) -> np.ndarray:
        counts = np.empty(blocks_of(numel, bits), np.int64)
        loops.count_blocks(indices, counts, bits)
        return counts

    def join_blocks(
        self, counts: np.ndarray, positions: np.ndarray, bits: int = BLOCK_BITS
    ) -> np.ndarray | None:
        indices = np.empty(positions.size, np.uint32)
        ascend = loops.join_blocks(_native(counts), _native(positions), indices, bits)
        return indices if ascend else None

    def half_codes(self, values: np.ndarray, out: np.ndarray) -> None:
        floats, codes = as_float32(values), _suiting(out)
        loops.half_codes(floats, floats.view(np.uint32), codes)
        if codes is not out:
            out[:] = codes

    def half_values(self, codes: np.ndarray) -> np.ndarray | None:
        values = np.empty(codes.size, np.float32)
        return values if loops.half_values(_native(codes), values.view(np.uint32), values) else None

    def brain_codes(self, values: np.ndarray, out: np.ndarray) -> None:
        codes = _suiting(out)
        loops.brain_codes(as_float32(values).view(np.uint32), codes)
        if codes is not out:
            out[:] = codes

    def brain_values(self, codes: np.ndarray) -> np.ndarray | None:
        values = np.empty(codes.size, np.float32)
        return values if loops.brain_values(_native(codes), values.view(np.uint32)) else None

    def largest_magnitude(self, values: np.ndarray) -> float:
        bits = values.view(f"u{values.itemsize}")
        magnitude = np.array(np.iinfo(bits.dtype).max >> 1, bits.dtype)
        found = loops.largest_bits(bits, magnitude[()])
        return float(np.array(found, bits.dtype).view(values.dtype))

    def multiples(self, values: np.ndarray, step: float, most: int) -> np.ndarray:
        found = np.empty(values.size, np.int8)
        loops.multiples(values, step, most, found)
        return found

    def sum_on_grid(self, values: np.ndarray, scale: float, above: int) -> tuple[int, int]:
        count, total = loops.sum_on_grid(values, scale, MOST_ON_GRID, above)
        return count, total

    def level_codes(self, values: np.ndarray, scale: float, above: int) -> np.ndarray:
        codes, bits = np.empty(values.size, np.uint8), values.view(f"u{values.itemsize}")
        loops.level_codes(values, bits, scale, MOST_ON_GRID, above, codes)
        return codes

    def level_values(
        self, codes: np.ndarray, low: float, high: float, dtype: np.dtype
    ) -> np.ndarray:
        values = np.empty(codes.size, dtype.newbyteorder("="))
        loops.level_values(codes, low, high, values)
        return values

    def pack_few(self, numbers: np.ndarray, width: int) -> np.ndarray:
        loop, per_byte, wide = _PACKING[width]
        whole = numbers.size // per_byte
        packed = np.empty(-(-numbers.size // per_byte), np.uint8)
        loop(_native(numbers[: whole * per_byte].view(wide)), packed[:whole])
        if whole < packed.size:
            packed[whole:] = super().pack_few(numbers[whole * per_byte :], width)
        return packed

    def unpack_few(self, packed: np.ndarray, width: int, count: int) -> np.ndarray | None:
        loop, per_byte, wide = _UNPACKING[width]
        numbers = np.empty(packed.size * per_byte, np.uint8)
        loop(packed, numbers.view(wide))
        return None if numbers[count:].any() else numbers[:count]

    def split_gaps(
        self, indices: np.ndarray, shift: int, has_thirds: bool
    ) -> tuple[np.ndarray, np.ndarray]:
        rests, quotients = np.empty(indices.size, np.uint32), np.empty(indices.size, np.uint32)
        loops.split_gaps(_native(indices), shift, 3 if has_thirds else 1, rests, quotients)
        return rests, quotients

    def join_gaps(
        self, rests: np.ndarray, quotients: np.ndarray, modulus: int, numel: int
    ) -> np.ndarray | None:
        return rests if loops.join_gaps(rests, quotients, modulus) < numel else None

    def bytes_from(self, numbers: np.ndarray, shift: int) -> np.ndarray:
        out = np.empty(numbers.size, np.uint8)
        loops.bytes_from(numbers, shift, out)
        return out

    def put_bytes(self, numbers: np.ndarray, bits: np.ndarray, shift: int) -> None:
        loops.put_bytes(numbers, bits, shift)

    def pack_unary(self, numbers: np.ndarray) -> np.ndarray:
        bits = int(loops.total(numbers)) + numbers.size
        words = np.zeros(bits // loops.WORD_BITS + 2, np.uint64)
        loops.pack_unary(numbers, words)
        return words.astype("<u8", copy=False).view(np.uint8)[: -(-bits // 8)]

    def unpack_unary(self, packed: np.ndarray, count: int) -> np.ndarray | None:
        words = np.zeros(-(-packed.size // 8), "<u8")
        words.view(np.uint8)[: packed.size] = packed
        places = np.empty(count + loops.SPARE, np.uint32)
        if loops.unpack_unary(_native(words), places, count) != count:
            return None
        numbers = places[:count]
        loops.zeros_between(numbers)
        return numbers

    def split_thirds(self, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        is_more, is_two = np.empty_like(numbers), np.empty_like(numbers)
        found = loops.split_thirds(numbers, is_more, is_two)
        return is_more, is_two[:found]

    def join_thirds(self, is_more: np.ndarray, is_two: np.ndarray) -> np.ndarray:
        numbers, room = np.empty_like(is_more), np.zeros_like(is_more)
        room[: is_two.size] = is_two
        loops.join_thirds(is_more, room, numbers)
        return numbers


def _suiting(out: np.ndarray) -> np.ndarray:
    """Return the array, or a new one of its size if compiled code cannot write to the array."""
    if out.flags.aligned and out.dtype.isnative:
        return out
    return np.empty(out.size, out.dtype.newbyteorder("="))


def _native(array: np.ndarray) -> np.ndarray:
    """Return the array aligned and in native byte order; parts of messages may be unaligned."""
    if array.flags.aligned and array.dtype.isnative:
        return array
    return np.require(array, array.dtype.newbyteorder("="), "A")
