"""Statistics of a vector in float64, computed on the device and converted on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from hvd_sparse.kernels.contract import Brought, Moments, Tail
from hvd_sparse.kernels.torch.vector import fetch, reaching, rounded


def pending_moments(x: torch.Tensor) -> torch.Tensor:
    """Return sum and maximum of the magnitudes and the number of non-zeros, on the device."""
    if not x.numel():
        return torch.zeros(3, dtype=torch.float64, device=x.device)
    magnitudes = x.abs()
    total, most = magnitudes.sum(dtype=torch.float64), magnitudes.max().to(torch.float64)
    return torch.stack([total, most, (x != 0).sum().to(torch.float64)])


def moments_in(found: np.ndarray, numel: int) -> Moments:
    total, most, nonzeros = found.view(np.float64).tolist()
    return Moments(total, most, int(nonzeros), numel)


def _pending_mean_and_std(x: torch.Tensor) -> torch.Tensor:
    """Return the mean and the sum of the squared distances from it, on the device."""
    wide = x.to(torch.float64)
    mean = wide.mean()
    return torch.stack([mean, (wide - mean).square().sum()])


def _mean_and_std_in(found: np.ndarray, numel: int) -> tuple[float, float]:
    if not numel:
        return 0.0, 0.0
    mean, squares = found.tolist()
    return mean, math.sqrt(squares / (numel - 1)) if numel > 1 else 0.0


def _pending_tail(x: torch.Tensor, threshold: float = 0.0) -> torch.Tensor:
    """Return the statistics of the excesses over a threshold, on the device."""
    magnitudes = x.abs()
    above = reaching(x, magnitudes, threshold)
    excesses = magnitudes.to(torch.float64) - rounded(x, threshold)
    nothing = torch.zeros_like(excesses)
    count = above.sum().to(torch.float64)
    mean = torch.where(above, excesses, nothing).sum() / count
    variance = torch.where(above, (excesses - mean).square(), nothing).sum() / count
    has_log = above & (excesses > 0)
    logs = torch.where(has_log, excesses, torch.ones_like(excesses)).log().sum()
    return torch.stack([count, mean, variance, logs, has_log.sum().to(torch.float64)])


def _tail_in(found: np.ndarray, numel: int) -> Tail:
    number, centre, spread, log_sum, log_count = found.tolist()
    if not number:
        return Tail(0, 0.0, 0.0, 0.0)
    return Tail(int(number), centre, spread, log_sum / log_count if log_count else 0.0)


class Statistic(NamedTuple):
    """One of the ``Brought`` statistics: its computation on the device, its number of float64, and
    its conversion on the host."""

    pending: Callable[[torch.Tensor], torch.Tensor]
    size: int
    read: Callable[[np.ndarray, int], object]


STATISTICS = {
    "moments": Statistic(pending_moments, 3, moments_in),
    "mean_and_std": Statistic(_pending_mean_and_std, 2, _mean_and_std_in),
    "tail": Statistic(_pending_tail, 5, _tail_in),
}


def pending(x: torch.Tensor, names: Sequence[str]) -> list[torch.Tensor]:
    """Return the numbers of several statistics, concatenated, on the device."""
    return [number for name in names for number in STATISTICS[name].pending(x).unbind()]


def read(numbers: Sequence[float], names: Sequence[str], numel: int) -> Brought:
    """Convert the numbers of statistics on the host."""
    found, rest = {}, np.array(numbers)
    for name in names:
        statistic = STATISTICS[name]
        found[name] = statistic.read(rest[: statistic.size], numel)
        rest = rest[statistic.size :]
    return Brought(**found)  # type: ignore[arg-type]


def moments(x: torch.Tensor) -> Moments:
    return moments_in(fetch(pending_moments(x)), x.numel())


def mean_and_std(x: torch.Tensor) -> tuple[float, float]:
    return _mean_and_std_in(fetch(_pending_mean_and_std(x)), x.numel())


def tail(x: torch.Tensor, threshold: float) -> Tail:
    return _tail_in(fetch(_pending_tail(x, threshold)), x.numel())


def digit_counts(x: torch.Tensor, shift: int, prefix: int) -> np.ndarray:
    pattern = torch.int64 if x.dtype == torch.float64 else torch.int32
    bits = x.view(pattern) & torch.iinfo(pattern).max
    has_prefix = torch.ones_like(bits)
    if 8 * x.element_size() - shift - 8:
        has_prefix = ((bits >> (shift + 8)) == prefix).to(pattern)
    digits = ((bits >> shift) & 255).to(torch.int64)
    counts = torch.zeros(256, dtype=torch.int64, device=x.device)
    return fetch(counts.scatter_add_(0, digits, has_prefix.to(torch.int64)))


def chunk_norms(x: torch.Tensor, length: int) -> np.ndarray:
    return fetch(chunks(x.abs().to(torch.float64), length).sum(1).to(x.dtype))


def chunks(x: torch.Tensor, length: int) -> torch.Tensor:
    """Return the vector as rows of equal length, the last one padded with zeros."""
    return torch.nn.functional.pad(x, (0, -x.numel() % length)).view(-1, length)
