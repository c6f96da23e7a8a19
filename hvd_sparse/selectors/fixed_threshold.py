from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_density, check_number, check_truth, count_from_density, option
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_below, steer
from hvd_sparse.selectors.contract import Context, Found, Selector, least_of, take_bounded
from hvd_sparse.types import Memo, Selection

CAPACITY = 2
"""Number of entries that the pass may collect at a value above the fixed threshold, as a multiple
of the number of entries that may be sent."""


@SELECTORS.register("fixed_threshold")
@dataclass(frozen=True)
class FixedThreshold(Selector):
    """Select all entries with a magnitude of at least ``threshold``.

    Parameters
    ----------
    threshold : float > 0, compared with the magnitudes of the accumulated gradient
    max_density : largest fraction of a tensor that is sent, in (0, 1]. If more entries reach the
        threshold, the largest of them are sent
    signs_only : send sign(x) * threshold instead of x, as Strom does; the residual keeps the rest

    Notes
    -----
    According to sahu2021rethinking, a fixed threshold minimises the total error over the training,
    while top-k minimises the error of a single step. If no entry reaches the threshold, the largest
    entry is sent. With ``signs_only``, nothing is sent in this case, because the sent value would
    be larger than the entry.

    Cost: in nearly every step, no extra pass over the tensor. The pass that adds the gradient to
    the residual also collects the entries that reach the threshold. After a step in which more
    entries than ``max_density`` allows reached the threshold, the pass collects fewer: those that
    reach a value slightly below the smallest entry sent in that step.

    Paper: sahu2021rethinking; with ``signs_only``, strom2015scalable.  Departs: the number of
    entries is bounded by ``max_density``; without ``signs_only``, at least one entry is sent.
    """

    threshold: float = option(check_number, low=0)
    max_density: float = option(check_density, 0.1)
    signs_only: bool = option(check_truth, False)

    ignores = frozenset({"order", "signs"})
    needs_host = ""

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        most, miss = count_from_density(accumulated.size, self.max_density), context.miss
        # More entries reach the aim than may be sent, so do not count them again.
        if miss is not None and miss.is_sure and miss.count is None:
            kept, is_fallback = context.kernels.take_largest(accumulated, most), True
        elif self.signs_only:
            count, kept = context.kernels.take_at_most(accumulated, self.threshold, most)
            is_fallback = count > most
        else:
            moments = context.moments_of(accumulated)
            found = take_bounded(accumulated, self.threshold, most, moments, context, 0)
            kept, is_fallback = found.selection, found.is_fallback
        was_cut = miss is not None and miss.aim.threshold > self.threshold
        memo = steer(context.memo, miss.count, most) if miss and was_cut else context.memo
        threshold = least_of(kept) if is_fallback else self.threshold
        return Found(self.as_sent(kept), threshold, is_fallback=is_fallback, memo=memo)

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        most = count_from_density(numel, self.max_density)
        # If too many entries reached the threshold at the previous step, ``warm`` is higher than
        # the threshold, and an aim slightly below ``warm`` may suffice again.
        below = aim_below(warm, memo, most, numel)
        if below is None or below.threshold <= self.threshold:
            return Aim(self.threshold, most)
        return below._replace(capacity=min(below.capacity, CAPACITY * most))

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        most = count_from_density(taken.numel, self.max_density)
        if aim.threshold > self.threshold:  # the count at the threshold is unknown
            if taken.count < most:
                return None
            return Cut(most, steer(context.memo, taken.count, most), is_fallback=True)
        if not taken.count and not self.signs_only:
            return None
        return Cut(taken.count, context.memo)

    def as_sent(self, kept: Selection) -> Selection:
        if not self.signs_only:
            return kept
        signs = np.copysign(kept.values.dtype.type(self.threshold), kept.values)
        return Selection(kept.indices, signs, kept.numel)

    @property
    def changes_values(self) -> bool:  # type: ignore[override]
        return self.signs_only
