"""Gradients and residuals for measuring: drawn, but in the steady state of error feedback."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

POOL = 4
BLOCKS = 64
SLACK = 65_536
ALIGNMENT = 16
"""Entries: windows begin at addresses that the allocators of the frameworks give out, multiples of
64 bytes."""


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Gradients:
    """A stream of gradients: windows at random places of a few drawn arrays, used in turn.

    Entries are Laplace distributed with mean 0, times a scale that is constant in each of 64
    stretches, as it differs between layers: the logarithm of the scale is normal with standard
    deviation 0.7.  No two steps give an entry the same value, and a step costs nothing to draw.
    """

    numel: int
    arrays: tuple[np.ndarray, ...]
    rms: float
    """Root of the mean square."""

    @classmethod
    def draw(cls, numel: int, seed: int) -> Gradients:
        rng = np.random.default_rng(seed)
        total = numel + min(SLACK, padded(numel))
        scales = np.exp(0.7 * rng.standard_normal(BLOCKS)).astype(np.float32)
        scale = np.repeat(scales, -(-total // BLOCKS))[:total]
        arrays = tuple(scale * _laplace(rng, total) for _ in range(POOL))
        return cls(numel, arrays, math.sqrt(float(np.mean(np.square(arrays[0]), dtype=np.float64))))

    def at(self, step: int) -> np.ndarray:
        """Return a view of float32 [numel], the same for the same step."""
        places = (self.arrays[0].size - self.numel) // ALIGNMENT + 1
        start = ALIGNMENT * int(np.random.default_rng(step).integers(places))
        return self.arrays[step % POOL][start : start + self.numel]

    def steady_residual(self, density: float, seed: int) -> np.ndarray:
        """Return about the residual, float32 [numel], that error feedback leaves at a density."""
        rng = np.random.default_rng(seed)
        walk = rng.random(self.numel, np.float32)
        walk -= rng.random(self.numel, np.float32)
        walk *= np.float32(self.rms / math.sqrt(density))
        return walk


def _laplace(rng: np.random.Generator, numel: int) -> np.ndarray:
    """Draw standard Laplace noise in float32 and in place, as these arrays are large."""
    drawn = rng.standard_exponential(numel, np.float32)
    np.copysign(drawn, rng.random(numel, np.float32) - np.float32(0.5), out=drawn)
    return drawn


def fill(gradients: np.ndarray, source: np.ndarray, step: int) -> None:
    """Write another draw: the source over and over, from a start that depends on the step."""
    start = step * 7_919_993 % source.size
    filled = 0
    while filled < gradients.size:
        part = min(source.size - start, gradients.size - filled)
        gradients[filled : filled + part] = source[start : start + part]
        filled, start = filled + part, 0
