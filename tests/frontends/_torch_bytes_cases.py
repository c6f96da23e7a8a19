"""Gradients that the worker sends and the test knows: without PyTorch, so that the test needs
none."""

from __future__ import annotations

import numpy as np

STEPS = 4
OPTIONS = {"density": 0.1, "allow_dense": False, "min_numel": 8}
SHAPES: dict[str, tuple[tuple[int, ...], str]] = {
    "small": ((12, 15), "float32"),
    "exact": ((9, 11), "float64"),
    "half": ((10, 8), "float16"),
    "vector": ((40,), "float32"),
    "large": ((300, 280), "float32"),
    "last": ((6, 5, 4), "float32"),
}
"""Shape and dtype by key; "large" alone fills a bucket, "vector" goes dense."""


def gradients_of(rank: int, step: int) -> dict[str, np.ndarray]:
    """Ordinary numbers: what a sum of them rounds to depends on its order."""
    return {
        key: np.random.default_rng([rank, step, number]).standard_normal(shape).astype(dtype)
        for number, (key, (shape, dtype)) in enumerate(SHAPES.items())
    }
