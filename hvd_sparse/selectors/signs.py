"""Selectors that send signs of one magnitude."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, check_whole
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import (
    Context,
    DensitySelector,
    ExactSelector,
    Found,
    Selector,
    least_of,
)
from hvd_sparse.types import Selection


@SELECTORS.register("ef_sign")
@dataclass(frozen=True)
class EfSign(Selector):
    """Send the sign of every non-zero entry, times the mean magnitude of all entries.

        sent_j = sign(accumulated_j) * mean(|accumulated|)

    With error feedback, |accumulated - sent|^2 = |accumulated|^2 - (sum of magnitudes)^2 / numel if
    no entry is 0. Cost: one pass for the mean, one to write the signs.

    Paper: karimireddy2019error.  Departs: the learning rate is left to the optimizer; the mean over
    the ranks divides by their number, which a published implementation omits.
    """

    paper = "karimireddy2019error"
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        scale = accumulated.dtype.type(context.moments_of(accumulated).abs_mean)
        kept = context.kernels.take_at_least(accumulated, 0.0)
        return Found(Selection(kept.indices, np.copysign(scale, kept.values), kept.numel))


@SELECTORS.register("sign_vote")
@dataclass(frozen=True)
class SignVote(Selector):
    """Send +1 or -1 for every non-zero entry, as its vote; memory ``majority_vote`` counts them.

    Exact zeros do not vote. Cost: one pass to write the signs.

    Paper: bernstein2019majority.
    """

    paper = "bernstein2019majority"
    sends_votes = True
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kept = context.kernels.take_at_least(accumulated, 0.0)
        votes = np.copysign(accumulated.dtype.type(1), kept.values)
        return Found(Selection(kept.indices, votes, kept.numel))


@SELECTORS.register("terngrad")
@dataclass(frozen=True)
class TernGrad(Selector):
    """Send sign(x_j) * s with probability |x_j| / s.

        x = accumulated, clipped at clip * std(accumulated);  s = max(|x|)

    Parameters
    ----------
    clip : float > 0, in standard deviations; None for no clipping
    seed : seed of the random numbers

    Notes
    -----
    The selection is unbiased for the clipped gradient, so ``memory="none"`` suffices. The random
    numbers depend only on the seed, the tensor, the step and the rank. Cost: two passes, and one
    random number per entry.

    Paper: wen2017terngrad.  Departs: every rank has its own s, while the paper uses the largest of
    all ranks.
    """

    clip: float | None = 2.5
    seed: int = 0

    paper = "wen2017terngrad"
    needs_rng = True
    is_unbiased = True
    is_by_magnitude = False
    ignores = frozenset({"scale"})
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"
    changes_values = True

    def __post_init__(self) -> None:
        if self.clip is not None:
            check_number(self.clip, "clip of TernGrad", 0)
        check_whole(self.seed, "seed of TernGrad", 0)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        scale = context.moments_of(accumulated).abs_max
        if self.clip is not None:
            scale = min(scale, self.clip * context.kernels.mean_and_std(accumulated)[1] or scale)
        candidates = context.kernels.take_at_least(accumulated, 0.0)
        drawn = context.random().random(candidates.count) * scale < np.abs(candidates.values)
        values = np.copysign(accumulated.dtype.type(scale), candidates.values[drawn])
        return Found(Selection(candidates.indices[drawn], values, accumulated.size))


@SELECTORS.register("stc")
@dataclass(frozen=True)
class Stc(ExactSelector):
    """Select the k largest entries, and send their signs times their mean magnitude.

        sent_j = sign(accumulated_j) * mean(|accumulated| over the k entries)

    Memories keep accumulated - sent at the sent entries: |accumulated - sent|^2 = |accumulated|^2 -
    (sum of the sent entries' magnitudes)^2 / k. Cost: that of ``topk``, and a pass over the k
    entries.

    Paper: sattler2019stc.
    """

    paper = "sattler2019stc"
    needs_host = ""
    changes_values = True

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        count = self.count(accumulated.size)
        kept = context.kernels.take_largest(accumulated, count)
        memo = context.margin_for(count)
        return Found(self.as_sent(kept), least_of(kept), memo=memo)

    def as_sent(self, kept: Selection) -> Selection:
        mean = np.abs(kept.values).mean(dtype=np.float64) if kept.count else 0.0
        values = np.copysign(kept.values.dtype.type(mean), kept.values)
        return Selection(kept.indices, values, kept.numel)


@SELECTORS.register("sbc")
@dataclass(frozen=True)
class Sbc(DensitySelector):
    """Select the k largest positive or the k most negative entries, and send their mean.

        plus  = mean of the k largest positive entries
        minus = mean of the magnitudes of the k most negative entries
        if plus >= minus: send plus at the positive entries; else -minus at the negative ones

    Fewer than k entries are sent if fewer have that sign. Memories keep accumulated - sent at the
    sent entries, so that |accumulated - sent|^2 = |accumulated|^2 - (sum of the sent entries'
    magnitudes)^2 / count. Cost: that of ``topk`` twice, each after a pass that clears the other
    sign.

    Paper: sattler2019sbc.  Departs: of entries as large as the k-th, only as many as needed are
    sent, while the paper's comparison with a threshold sends all of them.
    """

    paper = "sattler2019sbc"
    is_by_magnitude = False
    ignores = frozenset({"order", "scale"})
    needs_host = "works on an array on the host"
    changes_values = True
    pass_limit = 1  # for the sign that is not sent

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        count, sides = self.count(accumulated.size), []
        for clear in (np.maximum, np.minimum):
            kept = context.kernels.take_largest(clear(accumulated, 0), count)
            mean = float(kept.values.mean(dtype=np.float64)) if kept.count else 0.0
            sides.append((kept, mean))
        (plus, above), (minus, below) = sides
        kept, mean = (plus, above) if above >= -below else (minus, below)
        values = np.full(kept.count, mean, accumulated.dtype)
        return Found(Selection(kept.indices, values, kept.numel), passes=1)
