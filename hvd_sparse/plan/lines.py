"""Linear costs of messages and computations, and their fit to noisy measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Numbers = Any
"""A float or an array of floats: a formula returns a float for a float and an array for an array,
which numpy's type hints do not distinguish."""
OUTLIER = 5.0
"""Samples are dropped if they differ from their size's median by more than this many median
deviations."""


@dataclass(frozen=True)
class Line:
    """The time of a message or a computation: ``start_s + byte_s * size`` seconds.

    Attributes
    ----------
    start_s : start-up time in seconds, at size 0
    byte_s : seconds per byte that a node receives; for a computation, seconds per entry
    """

    start_s: float
    byte_s: float

    def __call__(self, size: Numbers) -> Numbers:
        """Return the time of a size in seconds, or the times of an array of sizes."""
        return self.start_s + self.byte_s * size


def one_after_another(lines: Sequence[Line]) -> Line:
    """Return the cost of sequential collectives of equal sizes as a line in their total bytes."""
    if not lines:
        return Line(0.0, 0.0)
    return Line(
        sum(line.start_s for line in lines), sum(line.byte_s for line in lines) / len(lines)
    )


def fit_line(samples: Iterable[tuple[float, float]]) -> Line:
    """Fit a line, of coefficients of 0 or more, to timed messages, robust to a few slow ones.

    The fit is a weighted Theil-Sen estimate, after outliers of every size are dropped.  The slope
    is the median of the slopes between all pairs of sizes, weighted by their distance, because
    differences between small messages are mostly noise.  The start is the median of the remainders,
    weighted towards short times.

    Parameters
    ----------
    samples : pairs of (bytes received, seconds) of at least two sizes, in any order
    """
    by_size: dict[float, list[float]] = {}
    for nbytes, seconds in samples:
        by_size.setdefault(float(nbytes), []).append(float(seconds))
    sizes = np.array(sorted(by_size))
    times = np.array([_typical(by_size[size]) for size in sizes.tolist()])
    first, second = np.triu_indices(sizes.size, 1)
    distance = sizes[second] - sizes[first]
    byte_s = max(0.0, _weighted_median((times[second] - times[first]) / distance, distance))
    start_s = max(0.0, _weighted_median(times - byte_s * sizes, 1.0 / np.maximum(times, 1e-9)))
    return Line(start_s, byte_s)


def _typical(times: list[float]) -> float:
    """Return the mean of the times near the median, which is steadier than a median of a few."""
    values = np.array(times)
    median = float(np.median(values))
    away = np.abs(values - median)
    near = away <= OUTLIER * float(np.median(away))
    return float(np.mean(values[near]))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])
