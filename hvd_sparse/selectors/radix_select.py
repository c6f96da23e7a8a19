from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.registry import SELECTORS
from hvd_sparse.selectors.contract import Context, ExactSelector, Found, least_of
from hvd_sparse.types import Selection

DIGIT_BITS = 8


@SELECTORS.register("radix_select")
@dataclass(frozen=True)
class RadixSelect(ExactSelector):
    """Select exactly the k entries of largest magnitude. The k-th one is found byte by byte.

        the bit patterns of |x|, read as integers, have the same order as |x|
        for each byte of the pattern, the highest byte first:
            count how often each value of this byte occurs, among the entries whose higher bytes
            equal those of the k-th magnitude; go down from value 255 until at least k entries have
            this value or a larger magnitude: this value is the byte of the k-th magnitude

    The selection equals that of ``topk`` bit for bit, including ties.

    Cost: in nearly every step, as for ``topk``, no extra pass over the tensor. Other steps, for
    example the first, need at most 4 counting passes (8 for float64), and one to take the entries.

    Paper: alabi2012fast.  Departs: every pass reads the whole vector, so that no copy has to be
    written, while the paper copies the entries that are still candidates.
    """

    needs_host = ""

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
