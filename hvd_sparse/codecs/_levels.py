"""Values of two bits: a sign, and one of two magnitudes, which are sent along.

    m      the mean magnitude
    low    the mean of the magnitudes up to m
    high   the mean of those above m; 0 where there are none

An exact zero has no sign, and is not sent.  Magnitudes are counted in whole multiples of a grid,
2^-26 of a power of two above the largest of them and at least 2^-125; each is at least one
multiple, and the means are cut to 16 significant bits.  So the levels are the same in whatever
order the magnitudes are added, and decoded values encode back to the same bytes.  The error is
never longer than the values, as each group is sent as its mean (but for magnitudes below the grid).

Departs: SparseLoCo has 2 bits a value; how its levels are chosen was not open to us.
"""

from __future__ import annotations

import math

import numpy as np

from hvd_sparse.kernels.levels import GRID_BITS, UPPER
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.wire.frame import need

LEVEL_BITS = 16
LEAST_EXPONENT = -99
"""Of the largest magnitude, at which the grid is 2^-125: no level is subnormal."""
_LARGEST = float(np.finfo(np.float32).max)


def to_levels(values: np.ndarray, kernels: Packers) -> tuple[np.ndarray, np.ndarray]:
    """Return the two levels, float32 [2], and the codes, uint8 [count]: bit 0 the sign, bit 1 the
    higher level.

    Parameters
    ----------
    values : float32 or float64 [count], without zeros
    kernels : of the engine
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
        mean, low, high = 1 << GRID_BITS, _cut(mean), 0  # no multiple is beyond it
    levels = [math.ldexp(level, exponent - GRID_BITS) for level in (low, high)]
    return np.array(levels, "<f4"), kernels.level_codes(values, scale, mean)


def _exponent_of(largest: float) -> int:
    """Return the exponent of a power of two above a magnitude."""
    return max(math.frexp(min(largest, _LARGEST))[1], LEAST_EXPONENT)


def _cut(level: int) -> int:
    """Return a level with its 16 highest bits alone."""
    spare = max(0, level.bit_length() - LEVEL_BITS)
    return level >> spare << spare


def from_levels(
    levels: np.ndarray, codes: np.ndarray, dtype: np.dtype, kernels: Packers
) -> np.ndarray:
    """Return the values of codes.

    Parameters
    ----------
    levels : little-endian float32 [2]
    codes : uint8 [count], below 4
    dtype : of the values
    kernels : of the engine

    Raises
    ------
    CorruptPayload : ``to_levels`` never writes these levels and codes
    """
    low, high = (float(level) for level in levels)
    upper = int(np.count_nonzero(codes & UPPER))
    if not codes.size:
        need(not levels.view("<u4").any(), f"no value has the levels {low} and {high}")
        return np.empty(0, dtype)
    is_ours = _is_level(levels[0], max(low, high)) and upper < codes.size
    if upper:
        is_ours = is_ours and low < high and _is_level(levels[1], high)
    else:
        is_ours = is_ours and int(levels[1:].view("<u4")[0]) == 0
    need(is_ours, f"{upper} of {codes.size} values are at {high}, and the others at {low}")
    return kernels.level_values(codes, low, high, dtype)


def _is_level(level: np.float32, largest: float) -> bool:
    """Tell whether a level is one that is written beside a largest one: on its grid, in 16 bits."""
    if not 0 < float(level) <= largest <= _LARGEST:
        return False
    multiple = math.ldexp(float(level), GRID_BITS - _exponent_of(largest))
    return multiple >= 1 and multiple == _cut(int(multiple))
