from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvd_sparse.checks import check_density, check_whole, option
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.arrays import as_array
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import Cut, aim_below, steer
from hvd_sparse.selectors._search import check_tolerance
from hvd_sparse.selectors.contract import Context, DensitySelector, Found, largest_of
from hvd_sparse.types import Memo, Selection


@SELECTORS.register("dgc_sampled")
@dataclass(frozen=True)
class DgcSampled(DensitySelector):
    """Select about k entries above a threshold that is estimated from a strided sample.

        threshold = smallest magnitude in the top fraction ``density`` of the sample
        if more than high * k entries reach the threshold: select the k largest of them
        if fewer than low * k entries reach it: threshold *= low, and count again

    Parameters
    ----------
    sample_density : fraction of the tensor's entries in the sample. It is increased if fewer than
        two sampled entries would lie above the threshold
    bounds : (low, high) in the formulas above, with 0 < low < 1 <= high
    max_rounds : how often the threshold may be lowered in a step
    seed : seed of the random index at which the sample starts

    Notes
    -----
    At least the largest entry and at most high * k entries are sent.

    Cost: in most steps, no extra pass over the tensor. The pass that adds the gradient to the
    residual also collects the entries whose magnitudes reach a value slightly below the previous
    step's threshold. If enough of these entries belong to the sample, they give the threshold, and
    the rest of the sample is not read. Otherwise the sample is read and, if too few entries were
    collected, each round needs one pass.

    Paper: lin2018dgc.  Departs: if between k and high * k entries reach the threshold, the authors'
    code sends only the k with the lowest indices. The ends of tensors are then seldom sent. Here
    all of these entries are sent.
    """

    sample_density: float = option(check_density, 0.01)
    bounds: tuple[float, float] = option(check_tolerance, (0.8, 1.3), is_strict=True)
    max_rounds: int = option(check_whole, 10, least=0)
    seed: int = option(check_whole, 0, least=0)

    needs_rng = True
    ignores = frozenset({"scale", "signs"})
    needs_host = ""

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel)

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        wanted, (low, high) = self.count(taken.numel), self.bounds
        if context.kept is None or taken.count <= wanted:  # ``find`` checks for other non-zeros
            return None
        most, magnitudes = math.floor(min(high * wanted, taken.numel)), np.abs(taken.values)
        memo = steer(context.memo, taken.count, most + 1)
        dtype, count = taken.values.dtype.type, taken.count
        sampled = self._sampled_threshold(context.kept, context, taken)
        threshold = min(sampled, float(magnitudes.max()))
        for rounds in range(self.max_rounds + 1):
            if dtype(threshold) < dtype(aim.threshold):
                if taken.count <= most:  # the count at the threshold is unknown
                    return None
                count = taken.count  # at least this many, which is too many
            else:
                count = int(np.count_nonzero(magnitudes >= dtype(threshold)))
            if count >= low * wanted or rounds == self.max_rounds:
                break
            threshold *= low
        return Cut(wanted, memo, is_fallback=True) if count > most else Cut(count, memo)

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        moments = context.moments_of(accumulated)
        wanted = self.count(accumulated.size)
        if moments.nonzeros <= wanted:  # take all of them
            return Found(context.kernels.take_at_least(accumulated, 0.0), memo=context.memo)
        low, high = self.bounds
        threshold = min(self._sampled_threshold(accumulated, context), moments.abs_max)
        most = math.floor(min(high * wanted, accumulated.size))
        # Count and take in one pass, because the first threshold is usually good.
        count, selection = context.kernels.take_at_most(accumulated, threshold, most)
        passes = 0
        while count < low * wanted and passes < self.max_rounds:
            threshold *= low
            count, selection = context.kernels.take_at_most(accumulated, threshold, most)
            passes += 1
        memo = context.margin_for(most + 1)
        if count > most:
            selection = largest_of(selection, wanted, context.kernels)
        return Found(selection, threshold, passes, is_fallback=count > most, memo=memo)

    def _sampled_threshold(
        self, accumulated: np.ndarray, context: Context, taken: Selection | None = None
    ) -> float:
        """Return a threshold estimated from a strided sample; infinity if all of the sample is 0.
        ``taken`` are entries that were replaced by zeros in the vector, but belong to it."""
        stride = self.stride(accumulated.size)
        start = int(context.random().integers(stride)) if stride > 1 else 0
        top = max(1, math.ceil(len(range(start, accumulated.size, stride)) * self.share))
        if taken is not None:
            ahead = taken.indices.astype(np.int64) - start
            is_sampled = (ahead >= 0) & (ahead % stride == 0)
            largest = np.abs(taken.values[is_sampled])
            if largest.size >= top:  # all other sampled entries are below the aim
                return float(np.partition(largest, largest.size - top)[largest.size - top])
        sample: np.ndarray = np.abs(as_array(accumulated[start::stride]))
        if taken is not None:
            sample[ahead[is_sampled] // stride] = largest
        return float(reference.take_largest(sample, top).values.min(initial=np.inf))

    def stride(self, numel: int) -> int:
        """Return the distance between sampled entries. The distance is odd, because an even one
        would often sample only some columns of a matrix."""
        fewest = math.ceil(2 / self.share)
        if numel <= fewest:
            return 1
        wanted = max(math.ceil(numel * self.sample_density), fewest)
        stride = math.ceil(numel / wanted / 32) * 32 + 1
        while stride > 1 and numel // stride < wanted:
            # Steps of 8 keep the stride odd.
            stride = max(1, stride - 8)
        return stride
