"""Values of two bits: a sign, and one of two magnitudes (levels) that are sent with them.

    m      the mean magnitude
    low    the mean of the magnitudes up to m
    high   the mean of those above m; 0 if there are none

Exact zeros have no sign and are not sent.  Magnitudes are rounded to multiples of a grid: 2^-26 of
a power of two above the largest magnitude, and at least 2^-125.  Each is at least one multiple, and
the means are truncated to 16 significant bits.  The levels therefore do not depend on the order of
addition, and decoded values encode back to the same bytes.  The norm of the error is at most that
of the values, because each group is sent as its mean (except for magnitudes below the grid).

Departs: SparseLoCo also has 2 bits a value, but does not publish how it chooses the levels.
"""

from __future__ import annotations

import math

import numpy as np

from hvd_sparse.kernels.levels import GRID_BITS, UPPER
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.wire.frame import need

LEVEL_BITS = 16
LEAST_EXPONENT = -99
"""Least exponent of the largest magnitude; the grid is then 2^-125, and no level is subnormal."""
_LARGEST = float(np.finfo(np.float32).max)


def to_levels(values: np.ndarray, kernels: Packers) -> tuple[np.ndarray, np.ndarray]:
    """Return the levels, float32 [2], and the codes, uint8 [count].

    Bit 0 of a code is set for negative values, bit 1 for the higher level.

    Parameters
    ----------
    values : float32 or float64 [count], without zeros
    kernels : the engine's packers
    """
    if not values.size:
        return np.zeros(2, "<f4"), np.empty(0, np.uint8)
    exponent = _exponent_of(kernels.largest_magnitude(values))
    scale = math.ldexp(1.0, GRID_BITS - exponent)
    count, total = kernels.sum_on_grid(values, scale, 0)
    mean = total // count
    upper, above = kernels.sum_on_grid(values, scale, mean)
    low, high = _cut((total - above) // (count - upper)), _cut(above // max(upper, 1))
    if not upper or low >= high:
        mean, low, high = 1 << GRID_BITS, _cut(mean), 0  # all up to the mean
    levels = [math.ldexp(level, exponent - GRID_BITS) for level in (low, high)]
    return np.array(levels, "<f4"), kernels.level_codes(values, scale, mean)


def _exponent_of(largest: float) -> int:
    """Return the exponent of a power of two above ``largest``."""
    return max(math.frexp(min(largest, _LARGEST))[1], LEAST_EXPONENT)


def _cut(level: int) -> int:
    """Truncate a level to its 16 highest bits."""
    spare = max(0, level.bit_length() - LEVEL_BITS)
    return level >> spare << spare


def from_levels(
    levels: np.ndarray, codes: np.ndarray, dtype: np.dtype, kernels: Packers
) -> np.ndarray:
    """Return the values, [count] of ``dtype``, that the codes stand for.

    Parameters
    ----------
    levels : little-endian float32 [2]
    codes : uint8 [count], below 4
    dtype : dtype of the values
    kernels : the engine's packers

    Raises
    ------
    CorruptPayload : ``to_levels`` cannot have produced these levels and codes
    """
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
        f"levels {low} and {high}, with {upper} of {codes.size} values at the higher one, are none "
        "that an encoder writes",
    )
    return kernels.level_values(codes, low, high, dtype)


def _is_level(level: np.float32, largest: float) -> bool:
    """Return whether a level lies on the grid of the largest level and has at most 16 bits."""
    if not 0 < float(level) <= largest <= _LARGEST:
        return False
    multiple = math.ldexp(float(level), GRID_BITS - _exponent_of(largest))
    return multiple >= 1 and multiple == _cut(int(multiple))
