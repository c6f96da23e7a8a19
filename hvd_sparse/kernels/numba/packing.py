"""Compiled kernels of the codecs (``kernels.packing``). Most loops have no branch on the data, so
that LLVM vectorizes them."""

from __future__ import annotations

import numpy as np
from numba import types

from hvd_sparse.kernels.numba.bits import BYTES_OF_GAP, pack_few, pack_gaps, unpack_few, unpack_gaps
from hvd_sparse.kernels.numba.vectors import compiled
from hvd_sparse.kernels.packing import BLOCK_BITS, Packers, as_float32, blocks_of


def _arrays(scalar: types.Type) -> tuple[types.Array, types.Array]:
    return types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")


_U2, _U2_OUT = _arrays(types.uint16)
_U4, _U4_OUT = _arrays(types.uint32)


LANES = 16
"""Number of indices that ``count_blocks`` skips at once."""


@compiled([types.void(_U4, _arrays(types.int64)[1], types.intp)])
def count_blocks(indices, counts, bits):  # type: ignore[no-untyped-def]
    start = 0
    for block in range(counts.size):
        end, limit = start, (block + 1) << bits
        # Indices ascend, so if the last of LANES indices is in the block, all of them are.
        while end + LANES <= indices.size and indices[np.uintp(end + LANES - 1)] < limit:
            end += LANES
        while end < indices.size and indices[np.uintp(end)] < limit:
            end += 1
        counts[block] = end - start
        start = end


@compiled([types.intp(counts, _U2, _U4_OUT, types.intp) for counts in (_U2, _U4)])
def join_blocks(counts, positions, indices, bits):  # type: ignore[no-untyped-def]
    """Write the indices to ``indices``, computed from the number of indices in each block of 2^bits
    entries (``counts``) and from their positions in the blocks. Return whether the indices ascend
    strictly. The counts must add up to the number of positions."""
    start = 0
    for block in range(counts.size):
        end = start + int(counts[block])
        part, there, first = positions[start:end], indices[start:end], np.uint32(block << bits)
        for i in range(part.size):
            there[i] = first | np.uint32(part[i])
        start = end
    # Count the descents, because LLVM vectorizes only loops without an early exit.
    before, after = indices[:-1], indices[1:]
    falls = np.uint32(0)
    for i in range(after.size):
        falls += np.uint32(after[i] <= before[i])
    return falls == 0


@compiled([types.void(_U4, _U2_OUT)])
def brain_codes(bits, codes):  # type: ignore[no-untyped-def]
    for i in range(bits.size):
        code = np.uint32(np.uint32(bits[i] + np.uint32(0x8000)) >> np.uint32(16))
        exponent = np.uint32(code & np.uint32(0x7F80))
        cut = np.uint32(code - np.uint32(exponent == np.uint32(0x7F80)))
        codes[i] = np.uint16(cut if exponent != 0 else code & np.uint32(0x8000))


@compiled([types.intp(_U2, _U4_OUT)])
def brain_values(codes, bits):  # type: ignore[no-untyped-def]
    bad = False
    for i in range(codes.size):
        code = np.uint32(codes[i])
        exponent, rest = np.uint32(code & np.uint32(0x7F80)), np.uint32(code & np.uint32(0x7F))
        bad |= (exponent == np.uint32(0x7F80)) | ((exponent == 0) & (rest != 0))
        bits[i] = np.uint32(code << np.uint32(16))
    return not bad


class CompiledPackers(Packers):
    def count_blocks(self, indices: np.ndarray, numel: int, bits: int = BLOCK_BITS) -> np.ndarray:
        counts = np.empty(blocks_of(numel, bits), np.int64)
        count_blocks(indices, counts, bits)
        return counts

    def join_blocks(
        self, counts: np.ndarray, positions: np.ndarray, bits: int = BLOCK_BITS
    ) -> np.ndarray | None:
        indices = np.empty(positions.size, np.uint32)
        ascend = join_blocks(_aligned(counts), _aligned(positions), indices, bits)
        return indices if ascend else None

    def brain_codes(self, values: np.ndarray) -> np.ndarray:
        codes = np.empty(values.size, np.uint16)
        brain_codes(as_float32(values).view(np.uint32), codes)
        return codes

    def brain_values(self, codes: np.ndarray) -> np.ndarray | None:
        values = np.empty(codes.size, np.float32)
        return values if brain_values(_aligned(codes), values.view(np.uint32)) else None

    def pack_few(self, numbers: np.ndarray, width: int) -> np.ndarray:
        packed = np.empty(-(-numbers.size * width // 8), np.uint8)
        pack_few(numbers, width, packed)
        return packed

    def unpack_few(self, packed: np.ndarray, width: int, count: int) -> np.ndarray | None:
        numbers = np.empty(packed.size * (8 // width), np.uint8)
        unpack_few(packed, width, numbers)
        return None if numbers[count:].any() else numbers[:count]

    def pack_gaps(self, indices: np.ndarray, numel: int) -> np.ndarray:
        body = np.empty(BYTES_OF_GAP * (indices.size + 8), np.uint8)
        return body[: pack_gaps(_aligned(indices), numel, body)]

    def unpack_gaps(self, body: np.ndarray, count: int, numel: int) -> np.ndarray | None:
        indices = np.empty(count, np.uint32)
        return indices if unpack_gaps(body, numel, indices) else None


def _aligned(array: np.ndarray) -> np.ndarray:
    return array if array.flags.aligned else array.copy()
