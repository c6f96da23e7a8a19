"""The contract of the kernels: all work on arrays that selectors, memories and the pipeline ask
for.

Engines restate these functions for speed; ``core.kernels.reference`` states them for clarity and is
the oracle of every test.  The rules that make engines comparable:

* an entry is at least a threshold when ``abs(x) >= dtype(threshold)``, the threshold rounded to the
data's dtype;
* of equal magnitudes the lower index goes first; indices come out ascending and unique, as uint32;
* exact zeros are never taken, NaN is never taken;
* integers and orderings are equal bit for bit between engines; only ``moments`` may differ, in its
last digits;
* a kernel writes to arguments named ``residual`` or ``out`` and to nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from hvd_sparse.core.kernels.packing import Packers
from hvd_sparse.types import Selection


@dataclass(frozen=True)
class Moments:
    """One pass over a vector.

    Attributes
    ----------
    abs_sum : sum of magnitudes, accumulated in float64; NaN or Inf if any entry is
    abs_max : largest magnitude; NaN if any entry is NaN
    nonzeros : entries that are not exactly zero
    numel : all entries
    """

    abs_sum: float
    abs_max: float
    nonzeros: int
    numel: int

    @property
    def abs_mean(self) -> float:
        return self.abs_sum / self.numel if self.numel else 0.0

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.abs_sum) and np.isfinite(self.abs_max))


@dataclass(frozen=True)
class Tail:
    """The magnitudes above a threshold, as excesses over it.

    Attributes
    ----------
    count : how many there are
    mean, variance : of |x| - threshold
    mean_log : mean of ln(|x| - threshold), over excesses above 0
    """

    count: int
    mean: float
    variance: float
    mean_log: float


class Aim(NamedTuple):
    """What the pass that adds the gradient may take along, so that no further pass is needed.

    Attributes
    ----------
    threshold : entries that reach it are taken; above 0
    capacity : more of them than this are not worth it: none is taken
    """

    threshold: float
    capacity: int


class Taking(NamedTuple):
    """What the fused pass brings back.

    Attributes
    ----------
    abs_sum : sum of all magnitudes, to about six digits
    nonfinite : how many sums are NaN or Inf
    taken : the entries that reached the aim; None if they were more than its capacity
    """

    abs_sum: float
    nonfinite: int
    taken: Selection | None


class Kernels(Packers, Protocol):
    """What an engine provides.  All vectors are 1-D, C-contiguous, float32 or float64."""

    def moments(self, x: np.ndarray) -> Moments:
        """Sum and maximum of magnitudes, and the count of non-zeros."""

    def mean_and_std(self, x: np.ndarray) -> tuple[float, float]:
        """Mean and standard deviation (n - 1) of the signed entries, in float64."""

    def tail(self, x: np.ndarray, threshold: float) -> Tail:
        """What lies above a threshold; of the non-zeros, for a threshold of 0."""

    def digit_counts(self, x: np.ndarray, shift: int, prefix: int) -> np.ndarray:
        """int64 [256]: how often each byte stands at bit ``shift`` of the magnitudes whose higher
        bits are ``prefix``."""

    def chunk_norms(self, x: np.ndarray, length: int) -> np.ndarray:
        """Sums of magnitudes of chunks of ``length`` entries, the last one shorter; accumulated in
        float64, of x's dtype."""

    def sample_magnitudes(self, x: np.ndarray, start: int, stride: int) -> np.ndarray:
        """|x[start::stride]|."""

    def count_at_least(self, x: np.ndarray, threshold: float) -> int:
        """How many magnitudes are at least the threshold."""

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        """The entries whose magnitudes are at least the threshold; zeros never, whatever the
        threshold."""

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        """``count_at_least``, and ``take_at_least`` in the same pass; None instead of more than
        ``capacity`` entries.

        threshold : above 0
        """

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        """The ``count`` largest magnitudes, or all non-zeros where there are fewer."""

    def take_indices(self, x: np.ndarray, indices: np.ndarray) -> Selection:
        """The entries at ascending indices, zeros included."""

    def take_bins(
        self, accumulated: np.ndarray, gradient: np.ndarray, length: int
    ) -> tuple[np.ndarray, Selection]:
        """Every bin's largest |accumulated|, and the entries whose |accumulated + gradient| reaches
        their bin's.

        Bins are of ``length`` entries, the last one shorter; zeros are never taken.
        """

    def compensate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> None:
        """out = residual + gradient; ``out`` may be ``residual`` itself."""

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        """out = residual + gradient, and its moments; where the sum is not finite ``out`` keeps the
        residual's entry.

        ``out`` may be ``residual`` itself.
        """

    def accumulate_and_take(
        self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
    ) -> Taking:
        """The fused pass: ``accumulate``, and what reaches the aim is taken out: it is +0.0 in
        ``out``.

        Beyond the aim's capacity, and where the sum is not finite, nothing is taken.
        """

    def trim(self, taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
        """The ``count`` largest of the taken entries, and the smallest magnitude among them; the
        rest go back to ``out``.

        taken : non-zero numbers, at least ``count`` of them, which is at least 1
        out : where they were taken from; None if they were only copied
        """

    def restore(self, out: np.ndarray, selection: Selection) -> None:
        """out[indices] = values."""

    def push_momentum(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        momentum: float,
        nesterov: bool,
    ) -> None:
        """out = momentum * residual + gradient; Nesterov: out = momentum * (residual + gradient).
        May be in place."""

    def clear(self, residual: np.ndarray, indices: np.ndarray) -> None:
        """residual[indices] = +0.0."""

    def assemble(self, out: np.ndarray, parts: Sequence[Selection]) -> None:
        """out = the sum of the selections, each entry added up in their order; 0 where none has
        one."""

    def scatter_add(self, out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
        """out[indices] += values, for indices that are unique."""
