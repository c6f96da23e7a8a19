"""RedSync's selections: a threshold by bisection, a coarse one, and entries of one sign."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_number, check_truth, check_whole
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_at
from hvd_sparse.selectors._search import band_around, search_threshold
from hvd_sparse.selectors.contract import Context, DensitySelector, ExactSelector, Found, least_of
from hvd_sparse.types import Memo, Selection


@SELECTORS.register("redsync_search")
@dataclass(frozen=True)
class RedsyncSearch(DensitySelector):
    """Select k to 2k entries above a threshold found by bisection between mean and maximum.

        threshold = mean(|x|) + m * (max(|x|) - mean(|x|)),  m by bisection until k <= count <= 2k

    Parameters
    ----------
    reuse_steps : number of steps for which a threshold is reused
    max_passes : largest number of passes, after which exact top-k selects among the candidates

    Notes
    -----
    A reused threshold is dropped if it selects no entry, or more than 2k. The search continues
    below the mean down to 0, while the paper's ends at the mean with the entries found.

    Cost: one pass for the moments, one per bisection, and one to take the entries.  With a reused
    threshold no pass besides the one that adds the gradient, which also collects the entries.

    Paper: fang2019redsync.  Departs from a widely copied implementation that raises the threshold
    if too few entries reach it; the paper's number of steps of reuse is not known to us.
    """

    reuse_steps: int = 5
    max_passes: int = 16

    paper = "fang2019redsync"
    tolerance = (1.0, 2.0)
    needs_host = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole(self.reuse_steps, "reuse_steps of RedsyncSearch", 0)
        check_whole(self.max_passes, "max_passes of RedsyncSearch", 1)

    @property
    def pass_limit(self) -> int:
        return self.max_passes

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        is_due = Context(memo=memo).age >= self.reuse_steps
        return None if is_due else aim_at(warm, 2 * self.count(numel))

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        return Cut(taken.count, context.age + 1) if taken.count else None

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted = self.count(accumulated.size)
        found, passes = context.reused(accumulated, self.reuse_steps, 2 * wanted)
        if found is None:
            return self._search(accumulated, wanted, context, passes)
        return found._replace(threshold=context.warm, memo=context.age + 1)

    def _search(self, accumulated: np.ndarray, wanted: int, context: Context, passes: int) -> Found:
        kernels = context.kernels
        moments = context.moments_of(accumulated)
        band = band_around(wanted, self.tolerance)
        if moments.nonzeros <= band.most:
            return Found(kernels.take_at_least(accumulated, 0.0), passes=passes)
        middle = 0.5 * (moments.abs_mean + moments.abs_max)
        most = self.max_passes - passes
        result = search_threshold(accumulated, middle, band, moments, kernels, "bisection", most)
        passes += result.passes
        if result.converged:
            return Found(result.selection, result.threshold, passes, memo=0)
        return Found(result.selection, None, passes, is_fallback=True)


@SELECTORS.register("redsync_trimmed")
@dataclass(frozen=True)
class RedsyncTrimmed(ExactSelector):
    """Select exactly the k largest entries, among those above a coarse threshold, the cut.

        cut = mean(|x|) + r * (max(|x|) - mean(|x|))
        r = 1 - step, 1 - 2 * step, ... until k entries reach the cut

    Parameters
    ----------
    step : float in (0, 1): decrease of r from one cut to the next

    Notes
    -----
    The selection equals that of ``topk``. The cut is 0 for r <= 0, so the search always ends.

    Cost: in nearly every step no pass besides the one that adds the gradient, as for ``topk``, and
    exact top-k of the whole vector if that pass collected too few or too many entries.  On the
    first step one pass for the moments, one per cut, one to take the candidates, and exact top-k of
    these.

    Paper: fang2019redsync.  Departs from a widely copied implementation that sends all entries
    above the cut, up to hundreds of times k.
    """

    step: float = 0.2

    paper = "fang2019redsync"
    needs_host = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.step, "step of RedsyncTrimmed", 0, 1)

    @property
    def pass_limit(self) -> int:
        return math.ceil(1 / self.step)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted, passes = self.count(accumulated.size), 0
        if context.miss is not None:  # there are no moments for a cut
            selection = context.kernels.take_largest(accumulated, wanted)
        else:
            coarse, passes = self._coarse_cut(accumulated, wanted, context)
            _, selection = context.kernels.take_at_most(accumulated, coarse, wanted)
        memo = context.margin_for(wanted)
        return Found(selection, least_of(selection), passes, memo=memo)

    def _coarse_cut(
        self, accumulated: np.ndarray, wanted: int, context: Context
    ) -> tuple[float, int]:
        """Return the first cut that enough entries reach, and the number of passes."""
        moments = context.moments_of(accumulated)
        ratio, passes, cut = 1.0, 0, 0.0
        while moments.nonzeros > wanted:
            ratio -= self.step
            cut = moments.abs_mean + ratio * (moments.abs_max - moments.abs_mean)
            if ratio <= 0 or cut <= 0.0:
                return 0.0, passes
            passes += 1
            if context.kernels.count_at_least(accumulated, cut) >= wanted:
                break
        return cut, passes


@SELECTORS.register("redsync_signs")
@dataclass(frozen=True)
class RedsyncSigns(DensitySelector):
    """Select the largest positive entries on one step and the most negative ones on the next.

        side = max(accumulated, 0) on even steps of a tensor, min(accumulated, 0) on odd steps
        sent_j = mean(side over the selected entries)

    Parameters
    ----------
    search : select k to 2k entries by ``redsync_search`` instead of exactly k by
        ``redsync_trimmed``

    Notes
    -----
    Memories keep accumulated - sent at the sent entries. All values of a message are equal, so it
    consists of the indices and one number, whose sign the codec sends. Cost: that of the other two
    selectors, and a pass that reads the tensor and writes one side of it.

    Paper: fang2019redsync.  Departs: a threshold is not reused, because the next step has the other
    sign; the output layer's values are averaged like all others.
    """

    search: bool = False

    paper = "fang2019redsync"
    is_by_magnitude = False
    ignores = frozenset({"order", "scale"})
    needs_host = "works on an array on the host"
    changes_values = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_truth(self.search, "search of RedsyncSigns")

    @property
    def pass_limit(self) -> int:
        return self._inner.pass_limit

    @property
    def _inner(self) -> RedsyncSearch | RedsyncTrimmed:
        if self.search:
            return RedsyncSearch(self.share, reuse_steps=0)
        return RedsyncTrimmed(self.share)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        is_negative = context.age % 2 == 1
        side = (np.minimum if is_negative else np.maximum)(accumulated, 0)
        # Without the moments and the threshold, which are those of the whole vector.
        found = self._inner.find(side, Context(kernels=context.kernels))
        kept = found.selection
        mean = kept.values.mean(dtype=np.float64) if kept.count else 0.0
        values = np.full_like(kept.values, mean)
        return Found(
            Selection(kept.indices, values, kept.numel),
            passes=found.passes,
            is_fallback=found.is_fallback,
            memo=float(not is_negative),
        )
