"""Gradients to send: drawn from recorded ones, other ones at every step, for little time and
memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).resolve().parent.parent.parent / "tests" / "fixtures" / "gradients"
POOL = 1 << 22
SCALE = 1e-3


def pool(rank: int) -> np.ndarray:
    """float32 [POOL]: entries of three models' first gradients, a tensor's mean magnitude being
    SCALE.

    Every entry gets up to 1 % of noise, so that there are not only a few thousand different ones.
    """
    rng = np.random.default_rng([20210219, rank])
    recorded = []
    for path in sorted(FIXTURES.glob("*.npz")):
        with np.load(path) as tensors:
            firsts = [tensors[key] for key in tensors.files if "-1-" in key]
        recorded += [first / np.abs(first).mean() for first in firsts]
    entries = rng.choice(np.concatenate(recorded), POOL).astype(np.float32)
    noise = rng.uniform(0.99, 1.01, POOL).astype(np.float32)
    return np.asarray(entries * noise * np.float32(SCALE))


def fill(gradients: np.ndarray, source: np.ndarray, step: int) -> None:
    """Another draw: the pool over and over, from a start that depends on the step."""
    start = step * 7_919_993 % source.size
    filled = 0
    while filled < gradients.size:
        part = min(source.size - start, gradients.size - filled)
        gradients[filled : filled + part] = source[start : start + part]
        filled, start = filled + part, 0
