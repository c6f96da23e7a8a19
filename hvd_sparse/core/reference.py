"""The kernels in plain numpy: clarity first.  Contracts: ``core.kernels``."""

from __future__ import annotations

import numpy as np

from ..types import Selection
from .kernels import Moments


def moments(x: np.ndarray) -> Moments:
    if x.size == 0:
        return Moments(0.0, 0.0, 0, 0)
    magnitudes = np.abs(x)
    return Moments(
        abs_sum=float(magnitudes.sum(dtype=np.float64)),
        abs_max=float(magnitudes.max()),
        nonzeros=int(np.count_nonzero(x)),
        numel=x.size,
    )


def count_at_least(x: np.ndarray, threshold: float) -> int:
    return int(np.count_nonzero(np.abs(x) >= x.dtype.type(threshold)))


def take_at_least(x: np.ndarray, threshold: float) -> Selection:
    rounded = x.dtype.type(threshold)
    magnitudes = np.abs(x)
    return _take(x, magnitudes >= rounded if rounded > 0 else magnitudes > 0)


def take_largest(x: np.ndarray, count: int) -> Selection:
    if count <= 0 or x.size == 0:
        return Selection.empty(x.size, x.dtype)
    magnitudes = np.fmax(np.abs(x), 0)  # fmax turns NaN into 0: it is never taken
    last = x.size - min(count, x.size)
    smallest_taken = np.partition(magnitudes, last)[last]
    if smallest_taken == 0:
        return _take(x, magnitudes > 0)
    kept = magnitudes > smallest_taken
    ties = np.flatnonzero(magnitudes == smallest_taken)
    kept[ties[: count - np.count_nonzero(kept)]] = True
    return _take(x, kept)


def compensate(gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
    np.add(residual, gradient, out=out)


def clear(residual: np.ndarray, indices: np.ndarray) -> None:
    residual[indices] = 0


def scatter_add(out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    out[indices] += values


def _take(x: np.ndarray, kept: np.ndarray) -> Selection:
    indices = np.flatnonzero(kept)
    return Selection(indices.astype(np.uint32), x[indices], x.size)
