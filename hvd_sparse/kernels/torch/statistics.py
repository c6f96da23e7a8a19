"""Statistics of a vector, in float64, each by one copy to the host."""

from __future__ import annotations

import math

import numpy as np
import torch

from hvd_sparse.kernels.contract import Moments, Tail
from hvd_sparse.kernels.torch.taking import reaching, rounded
from hvd_sparse.kernels.torch.vector import fetch


def pending_moments(x: torch.Tensor) -> torch.Tensor:
    """Return sum and maximum of the magnitudes and the count of non-zeros, on the device."""
    if not x.numel():
        return torch.zeros(3, dtype=torch.float64, device=x.device)
    magnitudes = x.abs()
    total, most = magnitudes.sum(dtype=torch.float64), magnitudes.max().to(torch.float64)
    return torch.stack([total, most, (x != 0).sum().to(torch.float64)])


def fetched_moments(pending: torch.Tensor, numel: int) -> Moments:
    """Return what ``pending_moments`` found."""
    return moments_in(fetch(pending), numel)


def moments_in(found: np.ndarray, numel: int) -> Moments:
    """Return what ``pending_moments`` found, once it is on the host."""
    total, most, nonzeros = found.view(np.float64).tolist()
    return Moments(total, most, int(nonzeros), numel)


def moments(x: torch.Tensor) -> Moments:
    """Return the vector's moments."""
    return fetched_moments(pending_moments(x), x.numel())


def pending_mean_and_std(x: torch.Tensor) -> torch.Tensor:
    """Return the mean and the sum of the squared distances from it, on the device."""
    wide = x.to(torch.float64)
    mean = wide.mean()
    return torch.stack([mean, (wide - mean).square().sum()])


def mean_and_std_in(found: np.ndarray, numel: int) -> tuple[float, float]:
    """Return what ``pending_mean_and_std`` found, once it is on the host."""
    if not numel:
        return 0.0, 0.0
    mean, squares = found.tolist()
    return mean, math.sqrt(squares / (numel - 1)) if numel > 1 else 0.0


def mean_and_std(x: torch.Tensor) -> tuple[float, float]:
    """Return mean and standard deviation (n - 1)."""
    return mean_and_std_in(fetch(pending_mean_and_std(x)), x.numel())


def pending_tail(x: torch.Tensor, threshold: float = 0.0) -> torch.Tensor:
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


def tail_in(found: np.ndarray, numel: int) -> Tail:
    """Return what ``pending_tail`` found, once it is on the host."""
    number, centre, spread, log_sum, log_count = found.tolist()
    if not number:
        return Tail(0, 0.0, 0.0, 0.0)
    return Tail(int(number), centre, spread, log_sum / log_count if log_count else 0.0)


def tail(x: torch.Tensor, threshold: float) -> Tail:
    """Return the statistics of the excesses over a threshold."""
    return tail_in(fetch(pending_tail(x, threshold)), x.numel())


def digit_counts(x: torch.Tensor, shift: int, prefix: int) -> np.ndarray:
    """Return how often each byte stands at a bit of the magnitudes that have a prefix."""
    pattern = torch.int64 if x.dtype == torch.float64 else torch.int32
    bits = x.view(pattern) & torch.iinfo(pattern).max  # without the sign
    has_prefix = torch.ones_like(bits)
    if 8 * x.element_size() - shift - 8:
        has_prefix = ((bits >> (shift + 8)) == prefix).to(pattern)
    digits = ((bits >> shift) & 255).to(torch.int64)
    counts = torch.zeros(256, dtype=torch.int64, device=x.device)
    return fetch(counts.scatter_add_(0, digits, has_prefix.to(torch.int64)))


def chunk_norms(x: torch.Tensor, length: int) -> np.ndarray:
    """Return the chunks' sums of magnitudes."""
    return fetch(chunks(x.abs().to(torch.float64), length).sum(1).to(x.dtype))


def chunks(x: torch.Tensor, length: int) -> torch.Tensor:
    """Return the vector as rows of one length, the last one filled up with zeros."""
    return torch.nn.functional.pad(x, (0, -x.numel() % length)).view(-1, length)
