"""DGC's selection: a threshold from a sample, repaired on what it selects."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.checks import check_density, check_whole
from hvd_sparse.core.kernels import reference
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._candidates import largest_of
from hvd_sparse.selectors._search import is_tolerance
from hvd_sparse.selectors.contract import Context, DensitySelector, Found


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

    Cost: the sample, and one pass a round, which counts and takes.

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

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        moments = context.moments_of(accumulated)
        wanted = self.count(accumulated.size)
        if moments.nonzeros <= wanted:  # all of them, without a sample
            return Found(context.kernels.take_at_least(accumulated, 0.0))
        low, high = self.bounds
        # A sample without a non-zero gives infinity.
        threshold = min(self._sampled_threshold(accumulated, context), moments.abs_max)
        most = math.floor(high * wanted)
        # Counted and taken in one pass: nearly every sample's threshold is good at once.
        count, selection = context.kernels.take_at_most(accumulated, threshold, most)
        passes = 0
        while count < low * wanted and passes < self.max_rounds:
            threshold *= low
            count, selection = context.kernels.take_at_most(accumulated, threshold, most)
            passes += 1
        if count > most:
            return Found(
                largest_of(selection, wanted, context.kernels), threshold, passes, is_fallback=True
            )
        return Found(selection, threshold, passes)

    def _sampled_threshold(self, accumulated: np.ndarray, context: Context) -> float:
        stride = self.stride(accumulated.size)
        start = int(context.random().integers(stride)) if stride > 1 else 0
        sample = context.kernels.sample_magnitudes(accumulated, start, stride)
        top = max(1, math.ceil(sample.size * self.share))
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
