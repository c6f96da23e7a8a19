"""Passes of a step over one tensor, in plain operations, each of which rounds as numpy's does."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hvd_sparse.kernels.contract import Aim, Taking
from hvd_sparse.kernels.optimizers import AdamStep
from hvd_sparse.kernels.torch import statistics
from hvd_sparse.kernels.torch.coming import Answers, Pass
from hvd_sparse.kernels.torch.taking import packed, reaching, unpacked


def accumulated(one: Pass) -> Answers:
    return _looked_at(one) if one.aim is None else _taken(one, one.aim)


def _looked_at(one: Pass) -> Answers:
    kept, numel = one.residual, one.out.numel()
    total = kept + one.gradient
    found = statistics.pending_moments(total)
    torch.where(total.isfinite(), total, kept, out=one.out)
    return Answers(found.view(torch.int32), lambda words: [statistics.moments_in(words, numel)])


def _taken(one: Pass, aim: Aim) -> Answers:
    kept = one.residual
    total = kept + one.gradient
    magnitudes = total.abs()
    is_finite = magnitudes < float("inf")
    reaches = reaching(total, magnitudes, aim.threshold) & is_finite
    sums = magnitudes.sum(dtype=torch.float64), is_finite.logical_not().sum()
    besides = statistics.pending(total, aim.brings)
    # Taken out of the sum before the host knows how many they are: it need not wait for that.
    leaves = reaches & (reaches.sum() <= aim.capacity)
    rest = torch.where(is_finite, total, kept)
    torch.where(leaves, torch.zeros_like(total), rest, out=one.out)

    def read(fetched: np.ndarray) -> list[Taking]:
        taken = unpacked(fetched, kept, aim.capacity, len(sums) + len(besides))
        abs_sum, nonfinite, *numbers = taken.also
        found = statistics.read(numbers, aim.brings, kept.numel())
        return [Taking(abs_sum, int(nonfinite), taken.selection, found)]

    return Answers(packed(total, reaches, aim.capacity, *sums, *besides), read)


def push_adam(vectors: Sequence[torch.Tensor], step: AdamStep) -> None:
    """Do ``Kernels.push_adam``; the vectors are in the order of its arguments."""
    gradient, mean, square, out_mean, out_square, out = vectors
    dtype = np.dtype(np.float64 if out.dtype == torch.float64 else np.float32)
    factors = (float(factor) for factor in step.factors(dtype))
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale = factors
    # Never a factor given to add: a device could fuse the two.
    torch.add(mean * beta1, gradient * rest1, out=out_mean)
    torch.add(square * beta2, (gradient * gradient).mul_(rest2), out=out_square)
    first, second = out_mean * unbias1, out_square * unbias2
    average = (second * own).add_(torch.minimum(first * first, second).mul_(others))
    top = first if step.is_of_mean else gradient
    torch.div(top, _root(average).add_(epsilon), out=out)
    out.add_(average.mul_(0.0)).mul_(scale)


def _root(x: torch.Tensor) -> torch.Tensor:
    """Return the square roots, rounded correctly: torch's own are so on some devices only."""
    if x.dtype == torch.float32:
        return x.double().sqrt().float()
    near = x.sqrt()
    # What is left of x, exactly: the square of the root's two halves, product by product (Dekker).
    large = near * 134217729.0
    high = large - (large - near)
    low = near - high
    square = near * near
    beyond = (high * high - square) + (high * low) * 2.0 + low * low
    better = near + ((x - square) - beyond) / (near * 2.0)
    return torch.where(torch.isfinite(better), better, near)
