"""Stochastic rounding: float32 to bfloat16 or float16 and back, so that nothing drifts.

Rounding to the nearest would swallow every gradient that is small beside its residual, at every
step anew. Rounded up or down with the odds of where the number lies between its neighbours, the
kept number is right on average:

    kept = the neighbour below, or with probability (x - below) / (above - below) the one above

The bits are drawn from (seed, index), so that a step is reproducible.
"""

from __future__ import annotations

import numpy as np

STORED: dict[str, type] = {"bfloat16": np.uint16, "float16": np.float16}
"""The numpy types that hold them: bfloat16 is kept as its bits."""

LARGEST = {"bfloat16": 3.3895314e38, "float16": 65504.0}

SMALLEST_NORMAL = np.float32(2.0**-14)
"""The smallest normal float16: numbers below it are multiples of 2**-24."""


def widen(stored: np.ndarray) -> np.ndarray:
    """Return the stored numbers as float32 [n], exactly; the dtype says which of the two formats
    they have."""
    if stored.dtype == np.float16:
        return stored.astype(np.float32)
    return (stored.astype(np.uint32) << 16).view(np.float32)


def narrow(x: np.ndarray, out: np.ndarray, seed: int) -> None:
    """Round float32 numbers to the dtype of ``out``, at random.

    Parameters
    ----------
    x : float32 [n], finite, of magnitudes up to ``LARGEST``
    out : uint16 (bfloat16) or float16 [n], written
    seed : 32 bits
    """
    dice = _dice(x.size, seed)
    bits = x.view(np.uint32)
    # A random number below one unit of the last place kept, added to the bits that are cut off,
    # carries with just the odds that rounding up must have.
    if out.dtype == np.uint16:
        np.right_shift(
            np.minimum(bits + (dice >> 16), _limit(bits, 0x7F7F)), 16, out=out, casting="unsafe"
        )
        return
    kept = 13
    rounded = np.minimum(bits + (dice >> (32 - kept)), _limit(bits, 0x477F, 0xE000)) & np.uint32(
        0xFFFFE000
    )
    # Below the smallest normal number float16 has fewer bits: there a multiple is rounded instead.
    normal = rounded.view(np.float32)
    odds = (dice >> (32 - kept)).astype(np.float32) * np.float32(2.0**-kept)
    tiny = np.floor(np.abs(x) * np.float32(2.0**24) + odds) * np.float32(2.0**-24)
    out[:] = np.where(np.abs(x) < SMALLEST_NORMAL, np.copysign(tiny, x), normal)


def _limit(bits: np.ndarray, high: int, low: int = 0xFFFF) -> np.ndarray:
    """Return the largest pattern of each sign that is no infinity: rounding up ends there."""
    largest = np.uint32(high << 16 | low)
    limit: np.ndarray = largest | (bits & np.uint32(0x80000000))
    return limit


def _dice(count: int, seed: int) -> np.ndarray:
    """Return uint32 [count]: a hash of index and seed, whose high bits are as good as random."""
    dice = np.arange(count, dtype=np.uint32)
    dice *= np.uint32(0x9E3779B1)
    dice ^= np.uint32(seed)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        dice ^= dice >> np.uint32(shift)
        dice *= np.uint32(factor)
    dice ^= dice >> np.uint32(16)
    return dice
