"""Values in 16 bits: IEEE half precision and bfloat16, rounded to nearest, never to infinity.

numpy's own casts to and from float16 take 3 to 5 ns an entry; integer arithmetic on the bit
patterns, a cache-sized block at a time, takes a third of that. Blocks with numbers that are
subnormal in float16 are left to numpy.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

BLOCK = 16384
"""Entries of a block, whose temporaries all stay in the second-level cache."""

_U4, _U2 = np.uint32, np.uint16
HALF_EXPONENT, BRAIN_EXPONENT = _U2(0x7C00), _U2(0x7F80)
"""The bits of the exponent in float16 and in bfloat16; all of them set is Inf or NaN."""

_MAGNITUDE, _SIGN = _U4(0x7FFFFFFF), _U2(0x8000)
_LARGEST_HALF = _U4(0x477FE000)  # 65504 as float32
_SMALLEST_HALF = 0x38800000  # 2^-14, below which float16 is subnormal
_REBIAS = 112 << 23  # exponent bias of float32 minus that of float16
_LARGEST_FLOAT = float(np.finfo(np.float32).max)


def _blocks(size: int) -> Iterator[slice]:
    for start in range(0, size, BLOCK):
        yield slice(start, start + BLOCK)


def as_float32(values: np.ndarray) -> np.ndarray:
    """Return the values as float32; those too large for it become its largest."""
    if values.dtype == np.float32:
        return np.ascontiguousarray(values)
    return np.clip(values, -_LARGEST_FLOAT, _LARGEST_FLOAT).astype(np.float32)


def half_codes(values: np.ndarray, out: np.ndarray) -> None:
    """Write float32 or float64 values to ``out`` as float16, uint16 [count], ties to even.

    Values beyond 65504 become the largest of that sign.
    """
    bits = as_float32(values).view(_U4)
    for block in _blocks(bits.size):
        magnitudes = bits[block] & _MAGNITUDE
        np.minimum(magnitudes, _LARGEST_HALF, out=magnitudes)
        if magnitudes.min() < _SMALLEST_HALF:
            out[block] = magnitudes.view(np.float32).astype(np.float16).view(_U2)
        else:
            # Just under half of a last place, and one more where the last bit is odd, carries into
            # the bits that remain: ties go to even.
            rounded = magnitudes >> _U4(13)
            rounded &= _U4(1)
            rounded += magnitudes
            rounded -= _U4(_REBIAS - 0xFFF)
            rounded >>= _U4(13)
            out[block] = rounded
        signs = (bits[block] >> _U4(16)).astype(_U2)
        signs &= _SIGN
        out[block] |= signs


def half_values(codes: np.ndarray) -> np.ndarray | None:
    """Return the values of float16 bit patterns, float32 [count]; None if one is NaN or Inf."""
    if (codes & HALF_EXPONENT).max(initial=0) == HALF_EXPONENT:
        return None
    values = np.empty(codes.size, np.float32)
    for block in _blocks(codes.size):
        part = codes[block]
        if (part & HALF_EXPONENT).min() == 0:
            values[block] = part.view(np.float16)
        else:
            bits = values[block].view(np.int32)
            bits[:] = part.view(
                np.int16
            )  # the sign spreads into the bits that are masked out below
            bits <<= 13
            bits &= np.int32(-0x70002000)  # sign, and the 15 bits of exponent and mantissa
            bits += np.int32(_REBIAS)
    return values


def brain_codes(values: np.ndarray, out: np.ndarray) -> None:
    """Write float32 or float64 values to ``out`` as bfloat16, uint16 [count], ties away from zero.

    No value is rounded up to infinity. Values below 2^-126 become zero: some threads take subnormal
    numbers for that, and others do not.
    """
    bits = as_float32(values).view(_U4)
    for block in _blocks(bits.size):
        rounded = bits[block] + _U4(0x8000)
        rounded >>= _U4(16)
        out[block] = rounded
    # A carry may have reached infinity: one less is the largest number of that sign.
    exponents = out & BRAIN_EXPONENT
    if exponents.max(initial=0) == BRAIN_EXPONENT:
        out[exponents == BRAIN_EXPONENT] -= _U2(1)
    if exponents.min(initial=1) == 0:
        out[exponents == 0] &= _SIGN


def brain_values(codes: np.ndarray) -> np.ndarray | None:
    """Return the values of bfloat16 bit patterns, float32 [count].

    None if one is NaN, Inf or subnormal.
    """
    exponents = codes & BRAIN_EXPONENT
    if exponents.max(initial=0) == BRAIN_EXPONENT:
        return None
    if exponents.min(initial=1) == 0 and (codes[exponents == 0] & ~_SIGN).any():
        return None
    bits = codes.astype(_U4)
    bits <<= _U4(16)
    return bits.view(np.float32)
