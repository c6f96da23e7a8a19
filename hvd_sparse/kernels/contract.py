"""Contract of the kernels: the functions on arrays that selectors, memories and the step call.

``kernels.reference`` implements the contract in plain numpy, and tests compare all other engines
with it. These rules make engines comparable:

* An entry reaches a threshold if ``abs(x) >= dtype(threshold)``, with the threshold rounded to the
  data's dtype.
* Of equal magnitudes the lower index goes first. Indices are uint32, ascending and unique.
* Exact zeros and NaN are never taken.
* Integers and orderings are equal bit for bit between engines. Only ``moments`` and
  ``orthogonalized`` may differ, in their last digits.
* A kernel writes only to arguments named ``residual``, ``out`` or ``out_...``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.kernels.optimizers import AdamStep, NewtonSchulz
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection


@dataclass(frozen=True)
class Moments:
    """Sums over a vector, computed in one pass.

    abs_sum : sum of magnitudes, accumulated in float64; NaN or Inf if any entry is NaN or Inf
    abs_max : largest magnitude; NaN if any entry is NaN
    nonzeros, numel : number of entries that are not exactly zero, and of all entries
    """

    abs_sum: float
    abs_max: float
    nonzeros: int
    numel: int

    @property
    def abs_mean(self) -> float:
        """The mean magnitude; 0 for an empty vector."""
        return self.abs_sum / self.numel if self.numel else 0.0

    @property
    def is_finite(self) -> bool:
        """Whether no entry is NaN or Inf."""
        return bool(np.isfinite(self.abs_sum) and np.isfinite(self.abs_max))


@dataclass(frozen=True)
class Tail:
    """Statistics of the magnitudes above a threshold, as excesses over it.

    count, mean, variance : of |x| - threshold
    mean_log : mean of ln(|x| - threshold), over excesses above 0
    """

    count: int
    mean: float
    variance: float
    mean_log: float


class Aim(NamedTuple):
    """Request to the pass that adds the gradient: also take the entries that reach a threshold.

    Taking them in this pass saves another pass over the vector.

    threshold : magnitude above 0; if the dtype rounds it to 0, all non-zeros are taken
    capacity : if more entries than this reach the threshold, none is taken
    brings : names of the ``Brought`` statistics to compute in the same pass; engines on the host
        may leave them out
    """

    threshold: float
    capacity: int
    brings: tuple[str, ...] = ()


class Brought(NamedTuple):
    """Statistics of the whole vector from the pass; None if the aim did not ask for them.

    tail : of the magnitudes above 0
    """

    moments: Moments | None = None
    mean_and_std: tuple[float, float] | None = None
    tail: Tail | None = None


NOTHING = Brought()


class Taking(NamedTuple):
    """The result of the pass that adds the gradient and takes entries.

    abs_sum : sum of all magnitudes, to about six digits; may be Inf if it overflows the dtype
    nonfinite : number of entries of residual + gradient that are NaN or Inf
    taken : the entries that reached the aim; None if they exceed its capacity
    brought : the requested statistics that the engine computes
    """

    abs_sum: float
    nonfinite: int
    taken: Selection | None
    brought: Brought = NOTHING


Sums = Sequence[tuple[np.ndarray, Sequence[Selection], float]]
"""Arguments of ``Kernels.assemble`` for several tensors: out, parts and factor of each."""
Surplus = Sequence[tuple[np.ndarray, Selection]]
"""Entries that were taken but not sent: for each tensor, its vector and the entries to put back."""


class Kernels(Packers, Protocol):
    """The functions of an engine. All vectors are 1-D, C-contiguous, float32 or float64."""

    def moments(self, x: np.ndarray) -> Moments:
        """Return the sum and the maximum of the magnitudes, and the number of non-zeros."""

    def mean_and_std(self, x: np.ndarray) -> tuple[float, float]:
        """Return the mean and the standard deviation (n - 1) of the signed entries, in float64."""

    def tail(self, x: np.ndarray, threshold: float) -> Tail:
        """Return statistics of the magnitudes above a threshold; 0 includes all non-zeros."""

    def digit_counts(self, x: np.ndarray, shift: int, prefix: int) -> np.ndarray:
        """Return the histogram of the byte at bit ``shift``, int64 [256], over the magnitudes whose
        higher bits equal ``prefix``."""

    def chunk_norms(self, x: np.ndarray, length: int) -> np.ndarray:
        """Return the sum of magnitudes of every chunk of ``length`` entries; the last may be
        shorter.

        Sums are accumulated in float64 and returned in x's dtype.
        """

    def sample_magnitudes(self, x: np.ndarray, start: int, stride: int) -> np.ndarray:
        """Return |x[start::stride]|."""

    def count_at_least(self, x: np.ndarray, threshold: float) -> int:
        """Count the magnitudes that are at least the threshold."""

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        """Return the entries whose magnitudes are at least the threshold, without zeros."""

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        """Return ``count_at_least`` and ``take_at_least`` of a threshold above 0, in one pass.

        The selection is None if it has more than ``capacity`` entries.
        """

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        """Return the number of non-zeros that reach the threshold, and these entries.

        If there are more than ``most``, the ``most`` largest are returned, and the number may be
        any above ``most``. Time and memory are bounded for every threshold.
        """

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        """Return the ``count`` largest magnitudes, or all non-zeros if there are fewer."""

    def take_indices(self, x: np.ndarray, indices: np.ndarray) -> Selection:
        """Return the entries at ascending indices, zeros included."""

    def take_bins(
        self, accumulated: np.ndarray, gradient: np.ndarray, length: int
    ) -> tuple[np.ndarray, Selection]:
        """Return every bin's largest |accumulated|, and the entries with |accumulated + gradient|
        at least that of their bin.

        Bins have ``length`` entries; the last may be shorter. Zeros are never taken.
        """

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        """Write out = residual + gradient, and return the moments of the sum.

        Entries of ``out`` keep the residual if the sum is not finite. ``out`` may be ``residual``.
        """

    def accumulate_and_take(
        self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
    ) -> Taking:
        """Do ``accumulate``, and move the entries that reach the aim to a list; ``out`` then has
        +0.0.

        Entries whose sum is not finite are not taken.
        """

    def trim(self, taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
        """Return the ``count`` largest of the taken entries, and the smallest magnitude among them.

        If there are fewer, all that are neither zero nor NaN are returned. The magnitude is 0 if
        none is returned.

        Parameters
        ----------
        taken : any entries, with ascending indices
        out : the vector from which they were taken, to put the other entries back; None if they are
            copies
        """

    def restore(self, out: np.ndarray, selection: Selection) -> None:
        """Write out[indices] = values."""

    def push_momentum(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        momentum: float,
    ) -> None:
        """Write out = momentum * residual + gradient; ``out`` may be ``residual`` itself."""

    def push_momentum_and_take(
        self,
        gradient: np.ndarray,
        velocity: np.ndarray,
        out_velocity: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        momentum: float,
        nesterov: bool,
        aim: Aim,
    ) -> Taking:
        """Do ``push_momentum`` to ``out_velocity``, then ``accumulate_and_take`` of the new
        velocity.

        With ``nesterov`` gradient + momentum * velocity is accumulated. Outputs may be the inputs.
        """

    def push_adam_and_take(
        self,
        gradient: np.ndarray,
        mean: np.ndarray,
        square: np.ndarray,
        out_mean: np.ndarray,
        out_square: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        step: AdamStep,
        aim: Aim,
    ) -> Taking:
        """Do ``push_adam``, then ``accumulate_and_take`` of the direction, which is not kept.

        Outputs may be the inputs.
        """

    def push_adam(
        self,
        gradient: np.ndarray,
        mean: np.ndarray,
        square: np.ndarray,
        out_mean: np.ndarray,
        out_square: np.ndarray,
        out: np.ndarray,
        step: AdamStep,
    ) -> None:
        """Update Adam's moments with this gradient, and write the direction.

            out_mean = beta1 * mean + (1 - beta1) * gradient
            out_square = beta2 * square + (1 - beta2) * gradient**2
            m, s = out_mean and out_square with bias correction
            average = s / ranks + min(m**2, s) * (1 - 1 / ranks)
            out = (gradient / (sqrt(average) + epsilon) + 0 * average) * scale

        Every operation is rounded to the dtype, in this order. ``0 * average`` gives NaN if a
        square overflows, because the division would hide the overflow. With ``step.is_of_mean`` m
        replaces the gradient in the last line. The new moments may be the old vectors; ``out`` must
        be different from all other vectors.
        """

    def orthogonalized(self, x: np.ndarray, step: NewtonSchulz) -> np.ndarray:
        """Return the matrices in x after the Newton-Schulz iteration, in a new vector.

            x = x / (norm of the matrix + epsilon)
            step.steps times: x = a * x + (b * (x @ x.T) + c * (x @ x.T) @ (x @ x.T)) @ x

        A matrix of zeros stays zero. If a matrix has NaN or Inf, all of its entries become NaN.
        Devices compute in bfloat16 for float32 vectors.
        """

    def clear(self, residual: np.ndarray, indices: np.ndarray) -> None:
        """Write residual[indices] = +0.0."""

    def assemble(self, out: np.ndarray, parts: Sequence[Selection], factor: float = 1.0) -> None:
        """Write out = the sum of factor * the selections, added in their order; 0 elsewhere.

        The factor is rounded to the dtype, and each product is rounded before it is added.
        """

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        """Do ``assemble`` for all sums of a bucket and ``restore`` for its surplus, in few
        launches."""

    def scatter_add(self, out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
        """Write out[indices] += values; the indices must be unique."""


Zeros = Callable[[int, DTypeLike], np.ndarray]
"""Function of a number of entries and a dtype that makes a vector of zeros in a tensor's place."""


class Engine(Protocol):
    """Selectable engine: a frozen dataclass, registered in ``ENGINES``."""

    id: ClassVar[str]

    @property
    def kernels(self) -> Kernels:
        """Return the functions, compiled if the engine compiles."""
