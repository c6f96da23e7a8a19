"""Formats of values, and the base class of codecs that send encoded indices, then values.

    float32    the values unchanged (float64 for float64 gradients): exact
    float16    5 bits of exponent, 10 of mantissa; clipped to +-65504; magnitudes below 2^-25 give 0
    bfloat16   8 bits of exponent, 7 of mantissa: the range of float32; magnitudes below 2^-126
               give 0
    int8       each value is rounded to a multiple, -127 to 127, of a step. The step is the largest
               magnitude / 127, and is sent before the multiples
    int4       as int8, with multiples from -7 to 7 of the largest magnitude / 7; two codes a byte
    int2       a sign, and a choice of two magnitudes (levels), which are sent before the codes;
               four codes a byte; exact zeros are not sent

The step of int8 and int4 is a float32 that is rounded down to at most 16 significant bits, so that
all its multiples are exact. If the largest decoded magnitude would be below 2^-100, the step is 0,
and all values are decoded as 0.

``missing_code`` is a code that no value has: in int8 -128, otherwise all bits set, which is a NaN.
Codec ``dense`` writes it for unsent entries. Only formats of whole bytes have this code.

The two levels of int2 follow from the mean magnitude m:

    low    the mean of the magnitudes up to m
    high   the mean of the magnitudes above m; 0 if there are none

These three means are computed from integers, because sums of integers are exact. So the levels do
not depend on the order of addition, and decoded values encode to the same bytes again. To get
integers, each magnitude is divided by a unit and rounded down, but to at least 1. The unit is 2^-26
of a power of two above the largest magnitude, but at least 2^-125. Levels have 16 significant bits.

The norm of int2's rounding error is at most the norm of the values (except for magnitudes below the
unit). The authors of SparseLoCo have not published how they choose the levels; this choice is ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_choice, option
from hvd_sparse.codecs._bits import packed_bytes, unpack
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.errors import CorruptPayload, InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers, as_float32
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import VALUE_FORMATS, Frame, need, open_frame, write_frame

LARGEST_MULTIPLE = {"int8": 127, "int4": 7}
STEP_BYTES = 4
WHOLE_BYTES = ("float32", "float16", "bfloat16", "int8")
"""Formats whose codes are whole bytes. Every codec with an option ``values`` accepts them."""

ALL_FORMATS = tuple(VALUE_FORMATS)
SMALLEST = 2.0**-100
LARGEST_HALF = 65504.0
GRID_BITS, LEVEL_BITS = 26, 16
UPPER = np.uint8(2)
"""This bit of an int2 code is set for the higher level; bit 0 is the sign."""
LEAST_EXPONENT = -99
"""Lower limit of the largest magnitude's binary exponent, so that no level is subnormal."""
_LARGEST = float(np.finfo(np.float32).max)
NOTHING = np.empty(0, np.uint8)


def check_format(values: str, what: str, formats: tuple[str, ...] = WHOLE_BYTES) -> None:
    try:
        check_choice(values, what, formats)
    except InvalidOption as error:
        raise InvalidOption(f"{error}; float32 keeps float64 gradients exact") from None


def code_bits(name: str, value_bytes: int) -> int:
    return {"float16": 16, "bfloat16": 16, "int8": 8, "int4": 4, "int2": 2}.get(
        name, 8 * value_bytes
    )


def prefix_bytes(name: str) -> int:
    return {"int8": STEP_BYTES, "int4": STEP_BYTES, "int2": 2 * STEP_BYTES}.get(name, 0)


def missing_code(width: int) -> int:
    return 0x80 if width == 1 else (1 << 8 * width) - 1


def encode_values(values: np.ndarray, name: str, kernels: Packers) -> tuple[np.ndarray, np.ndarray]:
    """Encode values in the format ``name``. Return two arrays: the prefix, which is sent before the
    codes, and the codes. The prefix is the step of int8 or int4, or the levels of int2, or empty.
    Codes of whole bytes are unsigned integers [count]; shorter codes are packed in uint8."""
    if name == "float32":
        codes = values.view(f"u{values.itemsize}").astype(f"<u{values.itemsize}", copy=False)
        return NOTHING, codes
    if name == "int2":
        levels, codes = to_levels(values)
        return levels, kernels.pack_few(codes, 2)
    if name in LARGEST_MULTIPLE:
        most = LARGEST_MULTIPLE[name]
        step = _step_of(float(np.abs(values).max(initial=0)), most)
        codes = np.zeros(values.size, np.uint8)
        if step:
            multiples = np.rint(values / values.dtype.type(step))
            codes = np.clip(multiples, -most, most).astype(np.int8).view(np.uint8)
        return np.array([step], "<f4"), codes if name == "int8" else kernels.pack_few(codes, 4)
    if name == "bfloat16":
        return NOTHING, kernels.brain_codes(values)
    halves = np.clip(as_float32(values), -LARGEST_HALF, LARGEST_HALF).astype(np.float16)
    return NOTHING, halves.view(np.uint16)


def _step_of(largest: float, most: int) -> float:
    """Return the step of int8 or int4 (see the module) for values with this largest magnitude.
    ``most`` is the largest multiple, 127 or 7. The largest decoded magnitude gives the same step,
    so decoded values encode to the same bytes again."""
    if not largest >= SMALLEST:
        return 0.0
    # A step of 16 bits times 127 has at most 23 bits, so all multiples are exact in float32.
    mantissa, exponent = math.frexp(min(largest, _LARGEST) / most)
    step = math.ldexp(math.floor(mantissa * 2**16), exponent - 16)
    return step if most * step >= SMALLEST else 0.0


def decode_values(
    prefix: np.ndarray, codes: np.ndarray, name: str, frame: Frame, kernels: Packers
) -> np.ndarray:
    """Return the values [count], in the frame's dtype, that ``encode_values`` encoded as this
    prefix and these codes. Raises CorruptPayload for a prefix or codes that no encoder writes."""
    if name == "int2":
        return from_levels(prefix.view("<f4"), codes, frame.value_type)
    if name in LARGEST_MULTIPLE:
        # Extend the sign of 4-bit codes.
        multiples = codes if name == "int8" else (codes ^ np.uint8(8)) - np.uint8(8)
        return _from_multiples(prefix, multiples, frame, LARGEST_MULTIPLE[name])
    if name == "float32":
        values: np.ndarray = codes.view(frame.value_type)
        need(bool(np.isfinite(values).all()), "a payload has NaN or Inf among its values")
        return values
    codes = codes.astype(np.uint16, copy=False)
    short = half_values(codes) if name == "float16" else kernels.brain_values(codes)
    if short is None:
        raise CorruptPayload(
            "a payload has NaN or Inf among its values, or magnitudes below 2^-126 in bfloat16"
        )
    return short.astype(frame.value_type, copy=False)


def half_values(codes: np.ndarray) -> np.ndarray | None:
    halves = codes.view(np.float16)
    return halves.astype(np.float32) if np.isfinite(halves).all() else None


def _from_multiples(prefix: np.ndarray, codes: np.ndarray, frame: Frame, most: int) -> np.ndarray:
    step = float(prefix.view("<f4")[0])
    multiples = codes.view(np.int8)
    largest = max(int(multiples.max(initial=0)), -int(multiples.min(initial=0)))
    # The encoder always writes the largest magnitude as the largest multiple.
    is_ours = (
        math.isfinite(step) and math.copysign(1.0, step) > 0 and largest == (most if step else 0)
    )
    need(
        is_ours and _step_of(most * step, most) == step,
        f"a payload has the step {step} with multiples up to {largest}, which no encoder writes",
    )
    values: np.ndarray = multiples.astype(frame.value_type)
    values *= frame.value_type.type(step)
    return values


def value_codes(
    frame: Frame, offset: int, count: int, name: str, kernels: Packers
) -> tuple[np.ndarray, np.ndarray]:
    """Return two parts of the frame's body: the prefix of ``encode_values``, uint8, which starts at
    the byte ``offset``, and the codes [count], which follow the prefix."""
    start = offset + prefix_bytes(name)
    width = code_bits(name, frame.value_type.itemsize)
    codes = frame.body[start : start + packed_bytes(count, width)]
    if width < 8:
        return frame.body[offset:start], unpack(codes, width, count, kernels)
    return frame.body[offset:start], codes.view(f"<u{width // 8}")


def values_bytes(count: int, name: str, value_bytes: int) -> int:
    return prefix_bytes(name) + packed_bytes(count, code_bits(name, value_bytes))


def to_levels(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the two levels of int2 (see the module), float32 [2], and the codes of non-zero
    values, uint8 [count]."""
    if not values.size:
        return np.zeros(2, "<f4"), np.empty(0, np.uint8)
    magnitudes = np.abs(values)
    exponent = _exponent_of(float(magnitudes.max()))
    # Multiplication by a power of two is exact.
    magnitudes *= values.dtype.type(math.ldexp(1.0, GRID_BITS - exponent))
    grid = np.minimum(magnitudes, (1 << GRID_BITS) - 1).astype(np.int32)
    np.maximum(grid, 1, out=grid)
    total = int(grid.sum(dtype=np.int64))
    mean = total // grid.size
    is_upper = grid > mean
    upper, above = int(np.count_nonzero(is_upper)), int(grid[is_upper].sum(dtype=np.int64))
    low, high = _cut((total - above) // (grid.size - upper)), _cut(above // max(upper, 1))
    if not upper or low >= high:  # one level for all
        is_upper[:], low, high = False, _cut(mean), 0
    levels = [math.ldexp(level, exponent - GRID_BITS) for level in (low, high)]
    codes: np.ndarray = np.signbit(values).view(np.uint8)
    codes |= is_upper.view(np.uint8) * UPPER
    return np.array(levels, "<f4"), codes


def _exponent_of(largest: float) -> int:
    return max(math.frexp(min(largest, _LARGEST))[1], LEAST_EXPONENT)


def _cut(level: int) -> int:
    spare = max(0, level.bit_length() - LEVEL_BITS)
    return level >> spare << spare


def from_levels(levels: np.ndarray, codes: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return the values [count] that ``to_levels`` encoded as these levels and codes. Raises
    CorruptPayload for levels or codes that ``to_levels`` never returns."""
    low, high = (float(level) for level in levels)
    upper = int(np.count_nonzero(codes & UPPER))
    if not codes.size:
        need(not levels.view("<u4").any(), f"a payload without values has levels {low} and {high}")
        return np.empty(0, dtype)
    is_ours = _is_level(levels[0], max(low, high)) and upper < codes.size
    if upper:
        is_ours = is_ours and low < high and _is_level(levels[1], high)
    else:
        is_ours = is_ours and int(levels[1:].view("<u4")[0]) == 0
    need(
        is_ours,
        f"no encoder writes levels {low} and {high} with {upper} of {codes.size} values at the "
        "higher one",
    )
    values: np.ndarray = np.array([low, -low, high, -high], dtype)[codes]
    return values


def _is_level(level: np.float32, largest: float) -> bool:
    """Return whether ``to_levels`` may have computed a level of int2: it has at most 16 significant
    bits, and is a multiple of the unit. The unit (see the module) follows from the larger of the
    two levels, ``largest``."""
    if not 0 < float(level) <= largest <= _LARGEST:
        return False
    multiple = math.ldexp(float(level), GRID_BITS - _exponent_of(largest))
    return multiple >= 1 and multiple == _cut(int(multiple))


@dataclass(frozen=True)
class ValuedCodec(Codec):
    """Base class of codecs that send encoded indices, and values in one of several formats.

    Parameters
    ----------
    values : "float32", exact, 4 bytes (8 for float64 gradients); "float16" or "bfloat16", 2 bytes;
        "int8", 1 byte; in some codecs also "int4" and "int2", 4 and 2 bits
    """

    values: str = option(check_format, "float32")

    is_exact_for_signs = False

    @property
    def is_exact(self) -> bool:  # type: ignore[override]
        return self.values == "float32"

    @property
    def sends_zeros(self) -> bool:  # type: ignore[override]
        return self.values != "int2"

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        if not self.sends_zeros:
            selection = selection.without_zeros()
        parts = self.encode_indices(selection, kernels)
        parts += encode_values(selection.values, self.values, kernels)
        assert self.number is not None
        dtype, values_format = selection.values.dtype, VALUE_FORMATS[self.values]
        return write_frame(
            self.number, dtype, selection.numel, selection.count, parts, values_format
        )

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        frame = open_frame(buffer, self, VALUE_FORMATS[self.values])
        offset = frame.body.size - values_bytes(frame.count, self.values, frame.value_type.itemsize)
        need(offset >= 0, f"a body of {frame.body.size} bytes cannot hold {frame.count} values")
        prefix, codes = value_codes(frame, offset, frame.count, self.values, kernels)
        values = decode_values(prefix, codes, self.values, frame, kernels)
        frame.body = frame.body[:offset]
        return Selection(self.decode_indices(frame, kernels), values, frame.numel)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return self.index_bytes(count, numel) + values_bytes(count, self.values, value_bytes)

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        raise NotImplementedError

    def decode_indices(self, frame: Frame, kernels: Packers) -> np.ndarray:
        """Return the indices, uint32 [count], ascending. ``frame.body`` has only the bytes before
        the values. Raises CorruptPayload unless the indices fill these bytes exactly."""
        raise NotImplementedError

    def index_bytes(self, count: int, numel: int) -> float:
        raise NotImplementedError
