"""The pass that adds a gradient to its residual, in plain operations, a tensor at a time."""

from __future__ import annotations

import numpy as np
import torch

from hvd_sparse.kernels.contract import Aim, Taking
from hvd_sparse.kernels.torch import brought, statistics
from hvd_sparse.kernels.torch.coming import Answers, Pass
from hvd_sparse.kernels.torch.taking import packed, reaching, unpacked


def accumulated(one: Pass) -> Answers:
    """Do a pass, and wait for nothing."""
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
    besides = brought.pending(total, aim.brings)
    # Taken out of the sum before the host knows how many they are: it need not wait for that.
    leaves = reaches & (reaches.sum() <= aim.capacity)
    rest = torch.where(is_finite, total, kept)
    torch.where(leaves, torch.zeros_like(total), rest, out=one.out)

    def read(fetched: np.ndarray) -> list[Taking]:
        taken = unpacked(fetched, kept, aim.capacity, len(sums) + len(besides))
        abs_sum, nonfinite, *numbers = taken.also
        found = brought.read(numbers, aim.brings, kept.numel())
        return [Taking(abs_sum, int(nonfinite), taken.selection, found)]

    return Answers(packed(total, reaches, aim.capacity, *sums, *besides), read)
