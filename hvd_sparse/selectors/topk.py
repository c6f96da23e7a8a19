"""Exact top-k, by a search for the threshold or digit by digit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors._aim import AIM
from hvd_sparse.selectors._search import Band, search_threshold
from hvd_sparse.selectors.contract import Context, ExactSelector, Found, least_of
from hvd_sparse.selectors.ldte import laplace_threshold
from hvd_sparse.types import Selection

MAX_PASSES = 16
"""Largest number of counts, after which exact top-k selects among the remaining entries."""

DIGIT_BITS = 8


@SELECTORS.register("topk")
@dataclass(frozen=True)
class TopK(ExactSelector):
    """Select exactly the k entries of largest magnitude.

        k = max(1, min(numel, floor(numel * density + 1e-9)))

    If there are fewer than k non-zero entries, all of them are selected.  Of equal magnitudes the
    lower index is selected first.

    Cost: in nearly every step no pass besides the one that adds the gradient. This pass also
    collects entries slightly smaller than the last k-th magnitude, and the k largest are kept.
    Otherwise counting passes until at most 3 k entries reach the threshold, and one to take these;
    counting starts from the Laplace estimate (see ``ldte_bs``) on the first step, and from slightly
    below the last threshold in groups.

    Paper: aji2017sparse.  Departs: k entries of each tensor instead of one threshold for all.
    """

    paper = "aji2017sparse"
    needs_host = ""
    pass_limit = MAX_PASSES

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        kernels, moments = context.kernels, context.moments_of(accumulated)
        count = self.count(accumulated.size)
        if moments.nonzeros <= count:
            return Found(kernels.take_at_least(accumulated, 0.0), context.warm, memo=context.memo)
        miss = context.miss
        known, warm = None, context.warm
        if miss:
            first, known = miss.retry, miss.known
        else:  # in groups, whose passes collect no entries, there may be a last threshold
            first = AIM * warm if warm else laplace_threshold(moments, count)
        band = Band(count, 2 * count, 3 * count)
        result = search_threshold(
            accumulated, first, band, moments, kernels, "log_count", MAX_PASSES, known
        )
        # The search selects up to 3 k.
        selection, threshold = kernels.trim(result.selection, count, None)
        memo = context.margin_for(count)
        return Found(selection, threshold, result.passes, memo=memo)


@SELECTORS.register("radix_select")
@dataclass(frozen=True)
class RadixSelect(ExactSelector):
    """Select exactly the k entries of largest magnitude, found digit by digit.

        bits(|x|) orders magnitudes; for each of its bytes, the highest first:
            make a histogram of this byte over the entries that share the digits found so far;
            go down from 255 until k entries are passed: this byte is the next digit of the k-th

    The selection equals that of ``topk`` bit for bit, including ties.

    Cost: in nearly every step no pass besides the one that adds the gradient, as for ``topk``.
    Otherwise, for example on the first step, at most 4 counting passes (8 for float64), and one to
    take the entries.

    Paper: alabi2012fast.  Departs: every pass reads the whole vector instead of copied candidates,
    so no copy of its size is written.
    """

    paper = "alabi2012fast"
    needs_host = ""
    pass_limit = 64 // DIGIT_BITS

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        wanted = self.count(accumulated.size)
        if not wanted:
            return Found(Selection.empty(accumulated.size, accumulated.dtype))
        total_bits = 8 * accumulated.itemsize
        prefix, missing, passes = 0, wanted, 0
        for shift in range(total_bits - DIGIT_BITS, -1, -DIGIT_BITS):
            counts = context.kernels.digit_counts(accumulated, shift, prefix)
            passes += 1
            from_above = np.cumsum(counts[::-1])[::-1]
            reaching = np.flatnonzero(from_above >= missing)
            digit = int(reaching[-1]) if reaching.size else 0
            missing -= int(from_above[digit] - counts[digit])
            prefix = (prefix << DIGIT_BITS) | digit
            if counts[digit] == missing:  # all entries with these digits are taken
                prefix <<= shift
                break
        threshold = float(np.array([prefix], f"u{accumulated.itemsize}").view(accumulated.dtype)[0])
        _, selection = context.kernels.take_at_most(accumulated, threshold, wanted)
        memo = context.margin_for(wanted)
        return Found(selection, least_of(selection), passes, memo=memo)
