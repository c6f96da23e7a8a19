"""Selection rules of other authors, written in torch operations from the published descriptions.

A rule has ``choose(accumulated, count)``, which returns about ``count`` entries of a flat tensor to
send, as int64 indices. A ``Peer`` combines a rule with error feedback: a step adds the gradient to
the residual and returns indices and values that are ready to send.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist

import torch

from hvd_sparse.checks import count_from_density


class Peer:
    def __init__(
        self, rule: TopK | DgcSampled | GaussianK, residual: torch.Tensor, density: float
    ) -> None:
        self.rule = rule
        self.residual = residual
        self.count = count_from_density(residual.numel(), density)

    def step(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return int32 indices and float32 values to send; the residual keeps the other entries."""
        self.residual.add_(gradient)
        indices = self.rule.choose(self.residual, self.count)
        values = self.residual[indices]
        self.residual.index_fill_(0, indices, 0.0)
        return indices.to(torch.int32), values


def above(magnitudes: torch.Tensor, threshold: torch.Tensor | float) -> torch.Tensor:
    return (magnitudes >= threshold).nonzero().view(-1)


@dataclass(frozen=True)
class TopK:
    """Exact top-k by ``torch.topk`` (Aji and Heafield 2017)."""

    def choose(self, accumulated: torch.Tensor, count: int) -> torch.Tensor:
        return torch.topk(accumulated.abs(), count, sorted=False).indices


@dataclass(frozen=True)
class DgcSampled:
    """At most ``count`` entries above a threshold, which comes from a strided sample and is
    corrected by counting (Lin et al. 2018)."""

    sample_density: float = 0.01
    low: float = 0.8
    high: float = 1.3
    rounds: int = 10

    def choose(self, accumulated: torch.Tensor, count: int) -> torch.Tensor:
        magnitudes = accumulated.abs()
        density = count / magnitudes.numel()
        stride = self.stride(magnitudes.numel(), density)
        sample = magnitudes[random.randrange(stride) :: stride] if stride > 1 else magnitudes
        threshold = torch.topk(
            sample, math.ceil(sample.numel() * density), sorted=False
        ).values.min()
        indices = above(magnitudes, threshold)
        for _ in range(self.rounds if stride > 1 else 0):
            if indices.numel() > self.high * count:
                indices = indices[torch.topk(magnitudes[indices], count, sorted=False).indices]
                break
            if indices.numel() >= self.low * count:
                break
            threshold = self.low * threshold
            indices = above(magnitudes, threshold)
        return indices[:count]

    def stride(self, numel: int, density: float) -> int:
        fewest = math.ceil(2 / density)
        if numel <= fewest:
            return 1
        wanted = max(math.ceil(numel * self.sample_density), fewest)
        stride = math.ceil(numel / wanted / 32) * 32 + 1
        while stride > 1 and numel // stride < wanted:
            stride = max(1, stride - 8)
        return stride


@dataclass(frozen=True)
class GaussianK:
    """Entries above a normal fit's threshold, corrected at most three times (Shi et al. 2019)."""

    rounds: int = 3

    def choose(self, accumulated: torch.Tensor, count: int) -> torch.Tensor:
        quantile = NormalDist().inv_cdf(1 - 0.5 * count / accumulated.numel())
        threshold = float(accumulated.mean() + quantile * accumulated.std())
        magnitudes = accumulated.abs()
        for _ in range(self.rounds):
            mask = magnitudes > threshold
            sent = int(mask.sum())
            if sent < 2 * count / 3:
                threshold *= 0.5
            elif sent > 4 * count / 3:
                threshold *= 1.5
            else:
                break
        return mask.nonzero().view(-1)


PEERS = {"torch.topk": TopK, "DGC, sampled threshold": DgcSampled, "Gaussian-k": GaussianK}
"""Classes of the rules by their names in the tables."""
