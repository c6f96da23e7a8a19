"""Random gradients, and residuals like those that error feedback leaves after many steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

POOL = 4
BLOCKS = 64
SLACK = 65_536
ALIGNMENT = 16
"""Entries in 64 bytes. Slices begin at multiples of it, as arrays of the frameworks do."""


def padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Gradients:
    """A stream of gradients: slices at random places of a few random arrays, which are used in
    turn.

    Entries are Laplace distributed with mean 0. Each of 64 parts of an array has its own scale,
    because the scales of layers differ. The logarithm of the scale is normal with standard
    deviation 0.7. An entry has another value at every step, and a step needs no time to draw
    numbers.
    """

    numel: int
    arrays: tuple[np.ndarray, ...]
    rms: float
    """Root mean square of the entries."""

    @classmethod
    def draw(cls, numel: int, seed: int) -> Gradients:
        rng = np.random.default_rng(seed)
        total = numel + min(SLACK, padded(numel))
        scales = np.exp(0.7 * rng.standard_normal(BLOCKS)).astype(np.float32)
        scale = np.repeat(scales, -(-total // BLOCKS))[:total]
        arrays = tuple(scale * _laplace(rng, total) for _ in range(POOL))
        return cls(numel, arrays, math.sqrt(float(np.mean(np.square(arrays[0]), dtype=np.float64))))

    def at(self, step: int) -> np.ndarray:
        """Return the gradient of a step, a view of float32 [numel]."""
        places = (self.arrays[0].size - self.numel) // ALIGNMENT + 1
        start = ALIGNMENT * int(np.random.default_rng(step).integers(places))
        return self.arrays[step % POOL][start : start + self.numel]

    def steady_residual(self, density: float, seed: int) -> np.ndarray:
        """Return random float32 [numel] that resembles the residual after many steps at a
        density."""
        rng = np.random.default_rng(seed)
        walk = rng.random(self.numel, np.float32)
        walk -= rng.random(self.numel, np.float32)
        walk *= np.float32(self.rms / math.sqrt(density))
        return walk


def _laplace(rng: np.random.Generator, numel: int) -> np.ndarray:
    """Return standard Laplace noise in float32, drawn in place because the arrays are large."""
    drawn = rng.standard_exponential(numel, np.float32)
    np.copysign(drawn, rng.random(numel, np.float32) - np.float32(0.5), out=drawn)
    return drawn


def fill(gradients: np.ndarray, source: np.ndarray, step: int) -> None:
    """Fill ``gradients`` with copies of ``source``, from an offset that depends on the step."""
    start = step * 7_919_993 % source.size
    filled = 0
    while filled < gradients.size:
        part = min(source.size - start, gradients.size - filled)
        gradients[filled : filled + part] = source[start : start + part]
        filled, start = filled + part, 0
