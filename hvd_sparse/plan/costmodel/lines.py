"""Lines over sizes: what a message or a computation costs, and the fit to noisy measurements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.errors import InvalidOption

Numbers = Any
"""A float, or an array of them: a formula returns the one for a float and the other for an array,
as numpy's operators do, whose types do not tell the two apart."""
OUTLIER = 5.0
"""Median deviations from their size's median beyond which samples are dropped."""


@dataclass(frozen=True)
class Line:
    """The seconds of a message or a computation, ``start_s + byte_s * size``.

    Attributes
    ----------
    start_s : seconds of one without any bytes
    byte_s : seconds for each byte that a node receives; of a computation, for each entry
    """

    start_s: float
    byte_s: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not is_number(value) or value < 0:
                raise InvalidOption(f"{name} of Line is {value!r}: a number, 0 or more")

    def __call__(self, size: Numbers) -> Numbers:
        """Return the seconds of a size, or of each in an array."""
        return self.start_s + self.byte_s * size


def one_after_another(lines: Sequence[Line]) -> Line:
    """Return the cost of collectives of which each begins when the one before is over.

    All bring the same number of bytes; the result is over the bytes of all.
    """
    if not lines:
        return Line(0.0, 0.0)
    return Line(
        sum(line.start_s for line in lines), sum(line.byte_s for line in lines) / len(lines)
    )


def fit_line(samples: Iterable[tuple[float, float]]) -> Line:
    """Fit a line to measured messages, so that a few slow ones do not bend it.

    After the outliers of every size are dropped it is a weighted Theil-Sen estimate.  The slope is
    the median of the slopes between all pairs of sizes, weighted by their distance, so that small
    messages, whose differences are noise, do not decide the bandwidth.  The start is the median of
    the rest, weighted towards short times.

    Parameters
    ----------
    samples : (bytes received, seconds), of at least two sizes, in any order; any number of each
        size.  All of them are of the number of ranks that the line is for

    Returns
    -------
    Line
        Neither part is below 0.

    Raises
    ------
    InvalidOption
        If there are fewer than two sizes, or a sample is no pair of finite numbers of 0 or more.

    Cost: quadratic in the number of sizes.
    """
    by_size: dict[float, list[float]] = {}
    for nbytes, seconds in samples:
        if not (is_number(nbytes) and is_number(seconds) and nbytes >= 0 and seconds >= 0):
            raise InvalidOption(
                f"sample ({nbytes!r}, {seconds!r}): bytes and seconds, finite and 0 or more"
            )
        by_size.setdefault(float(nbytes), []).append(float(seconds))
    if len(by_size) < 2:
        raise InvalidOption(
            f"{len(by_size)} message sizes were measured: a line needs at least two"
        )
    sizes = np.array(sorted(by_size))
    times = np.array([_typical(by_size[size]) for size in sizes.tolist()])
    # Theil and Sen's line, weighted: slopes between all pairs of sizes, of which far ones tell
    # more; a few messages that were held up do not move the median.
    first, second = np.triu_indices(sizes.size, 1)
    distance = sizes[second] - sizes[first]
    byte_s = max(0.0, _weighted_median((times[second] - times[first]) / distance, distance))
    start_s = max(0.0, _weighted_median(times - byte_s * sizes, 1.0 / np.maximum(times, 1e-9)))
    return Line(start_s, byte_s)


def _typical(times: list[float]) -> float:
    """Return the mean of the times near the median."""
    values = np.array(times)
    median = float(np.median(values))
    away = np.abs(values - median)
    # the mean of what is left is steadier than the median of a handful
    near = away <= OUTLIER * float(np.median(away))
    return float(np.mean(values[near]))


def _weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(below, below[-1] / 2)])
