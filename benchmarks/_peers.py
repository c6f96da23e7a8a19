"""The rules by which others choose entries, as their authors did: with torch operations, from the
published descriptions.

A rule has ``choose(accumulated, count)``: which entries of a flat tensor to send, as int64 indices.
A ``Peer`` joins one with error feedback: the whole path from the gradient to indices and values
that are ready to send, and the residual.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import Protocol

import torch

from hvd_sparse.checks import count_from_density


class Rule(Protocol):
    """A way to choose."""

    def choose(self, accumulated: torch.Tensor, count: int) -> torch.Tensor:
        """int64: the entries to send, about ``count`` of them."""


class Peer:
    def __init__(self, rule: Rule, residual: torch.Tensor, density: float) -> None:
        self.rule = rule
        self.residual = residual
        self.count = count_from_density(residual.numel(), density)

    def step(self, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """int32 indices and float32 values to send; the residual keeps the rest."""
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
    """A threshold from a strided sample, repaired; ``count`` entries at most (Lin et al. 2018)."""

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
    """A threshold from a normal fit, corrected three times at most (Shi et al. 2019)."""

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
"""How to make each rule, by the name that tables give it."""
