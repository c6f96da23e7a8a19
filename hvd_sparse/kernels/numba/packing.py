"""Compiled kernels of the codecs (``kernels.packing``). Most loops have no branch on the data, so
that LLVM vectorizes them."""

from __future__ import annotations

import numpy as np
from numba import types

from hvd_sparse.kernels.numba.bits import BYTES_OF_GAP, pack_few, pack_gaps, unpack_few, unpack_gaps
from hvd_sparse.kernels.numba.vectors import compiled
from hvd_sparse.kernels.packing import BLOCK_BITS, GRID_BITS, Packers, as_float32, blocks_of


def _arrays(scalar: types.Type) -> tuple[types.Array, types.Array]:
    return types.Array(scalar, 1, "C", readonly=True), types.Array(scalar, 1, "C")


_U1, _U1_OUT = _arrays(types.uint8)
_U2, _U2_OUT = _arrays(types.uint16)
_U4, _U4_OUT = _arrays(types.uint32)
_U8, _U8_OUT = _arrays(types.uint64)
_F4, _F4_OUT = _arrays(types.float32)
_F = [(scalar, *_arrays(scalar)) for scalar in (types.float32, types.float64)]

LANES = 16
"""Number of indices that ``count_blocks`` skips at once."""

MOST_ON_GRID = float((1 << GRID_BITS) - 1)

_LARGEST_HALF = 0x477FE000  # 65504 as float32
_SMALLEST_HALF = 0x38800000  # 2^-14, below which float16 is subnormal
_REBIAS = 112 << 23  # exponent bias of float32 minus that of float16


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
    """Write the result of ``Packers.join_blocks`` to ``indices``, and return whether the indices
    ascend strictly. The counts must add up to the number of positions."""
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


@compiled([types.void(_F4, _U4, _U2_OUT)])
def half_codes(values, bits, codes):  # type: ignore[no-untyped-def]
    small = np.uint32(0)
    for i in range(bits.size):
        given = np.uint32(bits[i] & np.uint32(0x7FFFFFFF))
        magnitude = given if given < np.uint32(_LARGEST_HALF) else np.uint32(_LARGEST_HALF)
        small += np.uint32(magnitude < np.uint32(_SMALLEST_HALF))
        tie = np.uint32(np.uint32(magnitude >> np.uint32(13)) & np.uint32(1))
        code = np.uint32(np.uint32(magnitude + tie) - np.uint32(_REBIAS - 0xFFF))
        sign = np.uint32(np.uint32(bits[i] >> np.uint32(16)) & np.uint32(0x8000))
        codes[i] = np.uint16(np.uint32(code >> np.uint32(13)) | sign)
    if small:  # values that are subnormal in float16 are rounded to a multiple of 2^-24
        for i in range(bits.size):
            if bits[i] & np.uint32(0x7FFFFFFF) < np.uint32(_SMALLEST_HALF):
                multiple = np.rint(abs(values[i]) * np.float32(2.0**24))
                codes[i] = np.uint16(multiple) | np.uint16(
                    (bits[i] >> np.uint32(16)) & np.uint32(0x8000)
                )


@compiled([types.intp(_U2, _U4_OUT, _F4_OUT)])
def half_values(codes, bits, values):  # type: ignore[no-untyped-def]
    """Write the values of float16 codes, and return whether all values are finite. ``bits`` is a
    view of ``values``."""
    bad = small = np.uint32(0)
    for i in range(codes.size):
        code = np.uint32(codes[i])
        exponent = np.uint32(code & np.uint32(0x7C00))
        bad += np.uint32(exponent == np.uint32(0x7C00))
        small += np.uint32(exponent == np.uint32(0))
        magnitude = np.uint32(
            np.uint32(np.uint32(code & np.uint32(0x7FFF)) << np.uint32(13)) + np.uint32(_REBIAS)
        )
        bits[i] = magnitude | np.uint32(np.uint32(code & np.uint32(0x8000)) << np.uint32(16))
    if small:
        for i in range(codes.size):
            if codes[i] & np.uint16(0x7C00) == 0:
                value = np.float32(codes[i] & np.uint16(0x3FF)) * np.float32(2.0**-24)
                values[i] = -value if codes[i] & np.uint16(0x8000) else value
    return bad == 0


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


@compiled([types.uint32(_U4, types.uint32), types.uint64(_U8, types.uint64)])
def largest_bits(bits, magnitude):  # type: ignore[no-untyped-def]
    largest = magnitude ^ magnitude
    for i in range(bits.size):
        largest = max(largest, bits[i] & magnitude)
    return largest


@compiled([types.void(x, scalar, scalar, _arrays(types.int8)[1]) for scalar, x, _ in _F])
def multiples(values, step, most, out):  # type: ignore[no-untyped-def]
    for i in range(values.size):
        quotient = np.rint(values[i] / step)
        out[i] = np.int8(np.int32(max(-most, min(most, quotient))))


@compiled([types.UniTuple(types.int64, 2)(x, scalar, scalar, types.int32) for scalar, x, _ in _F])
def sum_on_grid(values, scale, most, above):  # type: ignore[no-untyped-def]
    count, total = np.int64(0), np.int64(0)
    for i in range(values.size):
        found = max(np.int32(min(abs(values[i]) * scale, most)), np.int32(1))
        is_above = found > above
        count += is_above
        total += np.int64(found) * is_above
    return count, total


@compiled(
    [
        types.void(x, bits, scalar, scalar, types.int32, _U1_OUT)
        for (scalar, x, _), bits in zip(_F, (_U4, _U8))
    ]
)
def level_codes(values, bits, scale, most, above, codes):  # type: ignore[no-untyped-def]
    shift = bits.itemsize * 8 - 1
    for i in range(values.size):
        found = max(np.int32(min(abs(values[i]) * scale, most)), np.int32(1))
        codes[i] = np.uint8(bits[i] >> shift) | np.uint8(np.uint8(found > above) << np.uint8(1))


@compiled([types.void(_U1, s, s, out) for s, _, out in _F])
def level_values(codes, low, high, values):  # type: ignore[no-untyped-def]
    for i in range(codes.size):
        value = high if codes[i] & np.uint8(2) else low
        values[i] = -value if codes[i] & np.uint8(1) else value


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

    def half_codes(self, values: np.ndarray) -> np.ndarray:
        floats, codes = as_float32(values), np.empty(values.size, np.uint16)
        half_codes(floats, floats.view(np.uint32), codes)
        return codes

    def half_values(self, codes: np.ndarray) -> np.ndarray | None:
        values = np.empty(codes.size, np.float32)
        return values if half_values(_aligned(codes), values.view(np.uint32), values) else None

    def brain_codes(self, values: np.ndarray) -> np.ndarray:
        codes = np.empty(values.size, np.uint16)
        brain_codes(as_float32(values).view(np.uint32), codes)
        return codes

    def brain_values(self, codes: np.ndarray) -> np.ndarray | None:
        values = np.empty(codes.size, np.float32)
        return values if brain_values(_aligned(codes), values.view(np.uint32)) else None

    def largest_magnitude(self, values: np.ndarray) -> float:
        bits = values.view(f"u{values.itemsize}")
        magnitude = np.array(np.iinfo(bits.dtype).max >> 1, bits.dtype)
        found = largest_bits(bits, magnitude[()])
        return float(np.array(found, bits.dtype).view(values.dtype))

    def multiples(self, values: np.ndarray, step: float, most: int) -> np.ndarray:
        found = np.empty(values.size, np.int8)
        multiples(values, step, most, found)
        return found

    def sum_on_grid(self, values: np.ndarray, scale: float, above: int) -> tuple[int, int]:
        count, total = sum_on_grid(values, scale, MOST_ON_GRID, above)
        return count, total

    def level_codes(self, values: np.ndarray, scale: float, above: int) -> np.ndarray:
        codes, bits = np.empty(values.size, np.uint8), values.view(f"u{values.itemsize}")
        level_codes(values, bits, scale, MOST_ON_GRID, above, codes)
        return codes

    def level_values(
        self, codes: np.ndarray, low: float, high: float, dtype: np.dtype
    ) -> np.ndarray:
        values = np.empty(codes.size, dtype)
        level_values(codes, low, high, values)
        return values

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
