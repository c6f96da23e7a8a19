"""Values as numbers of few bits: multiples of a step, or a sign and one of two levels.

These are the references of ``packing.Packers``, in numpy.  Values are float32 or float64 [count].
"""

from __future__ import annotations

import numpy as np

GRID_BITS = 26
UPPER = np.uint8(2)
"""The bit of a level's code that stands for the higher one; bit 0 is the sign."""


def largest_magnitude(values: np.ndarray) -> float:
    """Return the largest magnitude, as ``Packers`` says."""
    return float(np.abs(values).max(initial=0))


def multiples(values: np.ndarray, step: float, most: int) -> np.ndarray:
    """Return the values in multiples of a step, as ``Packers`` says."""
    quotients = np.rint(values / values.dtype.type(step))
    found: np.ndarray = np.clip(quotients, -most, most).astype(np.int8)
    return found


def sum_on_grid(values: np.ndarray, scale: float, above: int) -> tuple[int, int]:
    """Return count and sum of the multiples beyond a number, as ``Packers`` says."""
    found = _on_grid(values, scale)
    found = found[found > above]
    return found.size, int(found.sum(dtype=np.int64))


def level_codes(values: np.ndarray, scale: float, above: int) -> np.ndarray:
    """Return signs and levels, as ``Packers`` says."""
    codes: np.ndarray = np.signbit(values).view(np.uint8)
    codes |= (_on_grid(values, scale) > above).view(np.uint8) * UPPER
    return codes


def _on_grid(values: np.ndarray, scale: float) -> np.ndarray:
    # A power of two: exact in the values' own dtype.
    scaled = np.abs(values) * values.dtype.type(scale)
    found: np.ndarray = np.minimum(scaled, (1 << GRID_BITS) - 1, out=scaled).astype(np.int32)
    np.maximum(found, 1, out=found)
    return found


def level_values(codes: np.ndarray, low: float, high: float, dtype: np.dtype) -> np.ndarray:
    """Return the values of signs and levels, as ``Packers`` says."""
    values: np.ndarray = np.array([low, -low, high, -high], dtype)[codes]
    return values


def pack_few(numbers: np.ndarray, width: int) -> np.ndarray:
    """Return numbers of 2 or 4 bits in bytes, as ``Packers`` says."""
    per_byte = 8 // width
    # Every per_byte-th number at a time: strides, where packbits knows one bit alone.
    padded = np.zeros(-(-numbers.size // per_byte) * per_byte, np.uint8)
    padded[: numbers.size] = numbers
    padded &= np.uint8((1 << width) - 1)
    packed = padded[::per_byte].copy()
    for place in range(1, per_byte):
        packed |= padded[place::per_byte] << np.uint8(width * place)
    return packed


def unpack_few(packed: np.ndarray, width: int, count: int) -> np.ndarray | None:
    """Return the numbers again, as ``Packers`` says."""
    per_byte = 8 // width
    numbers = np.empty(packed.size * per_byte, np.uint8)
    for place in range(per_byte):
        np.right_shift(packed, width * place, out=numbers[place::per_byte])
    numbers &= np.uint8((1 << width) - 1)
    return None if numbers[count:].any() else numbers[:count]
