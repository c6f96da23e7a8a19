"""The vectors on which selectors are tested."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np

Draw = Callable[[np.random.Generator, int, np.dtype], np.ndarray]


def _signs(rng: np.random.Generator, numel: int) -> np.ndarray:
    return rng.choice([-1.0, 1.0], numel)


def _one_spike(rng: np.random.Generator, numel: int, dtype: np.dtype) -> np.ndarray:
    x = np.full(numel, 1e-3)
    x[numel // 2 : numel // 2 + 1] = -1e6
    return x


def _few_nonzeros(rng: np.random.Generator, numel: int, dtype: np.dtype) -> np.ndarray:
    x = np.zeros(numel)
    x[:: max(1, numel // 3)] = rng.normal(size=len(x[:: max(1, numel // 3)]))
    return x


def _signed_zeros(rng: np.random.Generator, numel: int, dtype: np.dtype) -> np.ndarray:
    return np.where(rng.random(numel) < 0.7, 0.0 * _signs(rng, numel), rng.normal(size=numel))


def _denormals(rng: np.random.Generator, numel: int, dtype: np.dtype) -> np.ndarray:
    return rng.integers(-999, 1000, numel).astype(dtype) * np.finfo(dtype).smallest_subnormal


SMOOTH: dict[str, Draw] = {
    "normal": lambda rng, numel, dtype: rng.normal(size=numel),
    "laplace": lambda rng, numel, dtype: rng.laplace(size=numel),
    "student_t3": lambda rng, numel, dtype: rng.standard_t(3, numel),
    "lognormal": lambda rng, numel, dtype: rng.lognormal(0, 1.5, numel) * _signs(rng, numel),
    "uniform": lambda rng, numel, dtype: rng.uniform(-1, 1, numel),
    "all_negative": lambda rng, numel, dtype: -np.abs(rng.normal(size=numel)) - 1e-3,
}
"""Continuous: hardly any two magnitudes are equal, so there is a threshold for any count."""

NASTY: dict[str, Draw] = {
    "all_equal": lambda rng, numel, dtype: np.full(numel, 0.1),
    "plus_minus_one": lambda rng, numel, dtype: _signs(rng, numel),
    "small_integers": lambda rng, numel, dtype: rng.integers(-3, 4, numel),
    "one_spike": _one_spike,
    "all_zero": lambda rng, numel, dtype: np.zeros(numel),
    "few_nonzeros": _few_nonzeros,
    "signed_zeros": _signed_zeros,
    "denormals": _denormals,
}
"""Vectors with ties, spikes or zeros, for which estimates fail and searches find no threshold."""

ALL = {**SMOOTH, **NASTY}


def draw(name: str, numel: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, numel, *name.encode()])
    return np.ascontiguousarray(ALL[name](rng, numel, np.dtype(dtype)), dtype)


def squares(x: np.ndarray) -> float:
    return float((x.astype(np.float64) ** 2).sum())


@cache
def after_error_feedback(name: str, density: float) -> np.ndarray:
    """Return a vector from which the next step would select, after many steps of exact top-k with
    error feedback.

    Every entry has its own scale and a small drift. Gradients are slices at random places of one
    long random vector, which is faster than new random numbers.
    """
    numel, steps, rng = 10_000, 1_000, np.random.default_rng(7)
    count = int(numel * density)
    pool = draw(name, 8 * numel, seed=1)
    scales = rng.lognormal(0, 0.5, numel).astype(np.float32)
    drift = 0.05 * rng.normal(size=numel).astype(np.float32)
    residual = np.zeros(numel, np.float32)
    for start in rng.integers(0, 7 * numel, steps):
        residual += scales * (pool[start : start + numel] + drift)
        residual[np.argpartition(np.abs(residual), numel - count)[numel - count :]] = 0
    accumulated = residual + scales * (pool[:numel] + drift)
    accumulated.flags.writeable = False
    return accumulated
