"""DGC's selection: a threshold from a sample, repaired on what it selects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_density, check_whole
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_below, steer
from hvd_sparse.selectors._candidates import largest_of
from hvd_sparse.selectors._search import is_tolerance
from hvd_sparse.selectors.contract import Context, DensitySelector, Found
from hvd_sparse.types import Memo, Selection


@SELECTORS.register("dgc_sampled")
@dataclass(frozen=True)
class DgcSampled(DensitySelector):
    """Keep about k entries above a threshold that a strided sample gives.

        threshold = the smallest of the sample's top density
        more than high * k above it: exact top-k of those; fewer than low * k: threshold *= low, and
        again

    Parameters
    ----------
    density : float in (0, 1]
    sample_density : part of the entries looked at, at least so many that the sample's top holds two
    bounds : (low, high), over k
    max_rounds : how often the threshold is lowered
    seed : of the sample's start

    Notes
    -----
    Never more than high * k entries, and at least the largest one.

    Cost: hardly anything over the pass that adds the gradient, in most steps. It takes what is a
    little smaller than the last step's threshold along; where these are more than high * k,
    whatever the sample says is found among them, and where enough of them are in the sample nothing
    else is read. Else the sample, and where they are too few also one pass a round, which counts
    and takes.

    Paper: lin2018dgc.  Departs: from its authors' code, which cuts what is over k by position, so
    that the end of every tensor is served last: ours keeps the largest.
    """

    sample_density: float = 0.01
    bounds: tuple[float, float] = (0.8, 1.3)
    max_rounds: int = 10
    seed: int = 0

    paper: ClassVar[str | None] = "lin2018dgc"
    needs_rng: ClassVar[bool] = True
    ignores: ClassVar[frozenset[str]] = frozenset({"scale", "signs"})
    needs_host: ClassVar[str] = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_tolerance(self.bounds) or self.bounds[0] == 1:
            raise InvalidOption(
                f"bounds of DgcSampled is {self.bounds!r}: two numbers (low, high) with 0 < low < "
                "1 <= high"
            )
        object.__setattr__(self, "bounds", tuple(self.bounds))
        check_density(self.sample_density, "sample_density of DgcSampled")
        check_whole(self.max_rounds, "max_rounds of DgcSampled", 0)
        check_whole(self.seed, "seed of DgcSampled", 0)

    @property
    def pass_limit(self) -> int:
        return self.max_rounds

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel)

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        wanted, (low, high) = self.count(taken.numel), self.bounds
        if context.kept is None or taken.count <= wanted:  # or there may be no more non-zeros
            return None
        most, magnitudes = math.floor(high * wanted), np.abs(taken.values)
        memo = steer(context.memo, taken.count, most + 1)
        dtype, count = taken.values.dtype.type, taken.count
        sampled = self._sampled_threshold(context.kept, context, taken)
        threshold = min(sampled, float(magnitudes.max()))
        for rounds in range(self.max_rounds + 1):
            if dtype(threshold) < dtype(aim.threshold):
                if taken.count <= most:  # nobody knows how many reach it
                    return None
                count = taken.count  # or more: too many in any case
            else:
                count = int(np.count_nonzero(magnitudes >= dtype(threshold)))
            if count >= low * wanted or rounds == self.max_rounds:
                break
            threshold *= low
        return Cut(wanted, memo, is_fallback=True) if count > most else Cut(count, memo)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        moments = context.moments_of(accumulated)
        wanted = self.count(accumulated.size)
        if moments.nonzeros <= wanted:  # all of them, without a sample
            return Found(context.kernels.take_at_least(accumulated, 0.0), memo=context.memo)
        low, high = self.bounds
        threshold = min(self._sampled_threshold(accumulated, context), moments.abs_max)
        most = math.floor(high * wanted)
        # Counted and taken in one pass: nearly every sample's threshold is good at once.
        count, selection = context.kernels.take_at_most(accumulated, threshold, most)
        passes = 0
        while count < low * wanted and passes < self.max_rounds:
            threshold *= low
            count, selection = context.kernels.take_at_most(accumulated, threshold, most)
            passes += 1
        miss = context.miss
        memo = context.memo if miss is None else steer(context.memo, miss.count, most + 1)
        if count > most:
            few = largest_of(selection, wanted, context.kernels)
            return Found(few, threshold, passes, is_fallback=True, memo=memo)
        return Found(selection, threshold, passes, memo=memo)

    def _sampled_threshold(
        self, accumulated: np.ndarray, context: Context, taken: Selection | None = None
    ) -> float:
        """Return the smallest of a sample's top density; infinity where it has no non-zero.

        taken : entries that the vector lacks: all that reach the pass's aim
        """
        stride = self.stride(accumulated.size)
        start = int(context.random().integers(stride)) if stride > 1 else 0
        top = max(1, math.ceil(len(range(start, accumulated.size, stride)) * self.share))
        if taken is not None:
            ahead = taken.indices.astype(np.int64) - start
            is_sampled = (ahead >= 0) & (ahead % stride == 0)
            largest = np.abs(taken.values[is_sampled])
            if largest.size >= top:  # the rest of the sample lies below the aim: it is not read
                return float(np.partition(largest, largest.size - top)[largest.size - top])
        sample = context.kernels.sample_magnitudes(accumulated, start, stride)
        if taken is not None:
            sample[ahead[is_sampled] // stride] = largest
        return float(reference.take_largest(sample, top).values.min(initial=np.inf))

    def stride(self, numel: int) -> int:
        """Return the distance between sampled entries.

        It is odd against 32, so that the sample does not follow the rows of a matrix.
        """
        fewest = math.ceil(2 / self.share)
        if numel <= fewest:
            return 1
        wanted = max(math.ceil(numel * self.sample_density), fewest)
        stride = math.ceil(numel / wanted / 32) * 32 + 1
        while stride > 1 and numel // stride < wanted:
            # Steps of 8 keep it odd.
            stride = max(1, stride - 8)
        return stride
