"""Contract of the kernels: all work on arrays that selectors, memories and the pipeline ask for.

Engines restate these functions for speed; ``kernels.reference`` states them for clarity and is
the oracle of every test. These rules make engines comparable:

* an entry is at least a threshold when ``abs(x) >= dtype(threshold)``, the threshold rounded to the
data's dtype; * of equal magnitudes the lower index goes first; indices come out ascending and
unique, as uint32; * exact zeros are never taken, NaN is never taken; * integers and orderings are
equal bit for bit between engines; only ``moments`` and ``orthogonalized`` may differ, in their last
digits; * a kernel
writes to arguments named ``residual``, ``out`` or ``out_...`` and to nothing else.
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
    """Sums over a vector, found in one pass.

    abs_sum : sum of magnitudes, accumulated in float64; NaN or Inf if any entry is
    abs_max : largest magnitude; NaN if any entry is NaN
    nonzeros, numel : entries that are not exactly zero, and all entries
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
    """An order to the pass that adds the gradient: take these entries, which saves another pass.

    threshold : entries that reach it are taken; above 0. If the dtype rounds it to 0, all non-zeros
        are
    capacity : if more entries than this reach it, none is taken
    brings : names of the ``Brought`` statistics that the aim also asks for; engines of the host may
        leave them out
    """

    threshold: float
    capacity: int
    brings: tuple[str, ...] = ()


class Brought(NamedTuple):
    """Statistics of the whole vector that a pass found; None if the aim did not ask for them.

    tail : above a threshold of 0
    """

    moments: Moments | None = None
    mean_and_std: tuple[float, float] | None = None
    tail: Tail | None = None


NOTHING = Brought()


class Taking(NamedTuple):
    """The result of the fused pass.

    abs_sum : sum of all magnitudes, to about six digits; may be Inf where it leaves the dtype
    nonfinite : how many sums are NaN or Inf
    taken : the entries that reached the aim; None if they exceed its capacity
    brought : the statistics that the aim asked for, as far as the engine has them
    """

    abs_sum: float
    nonfinite: int
    taken: Selection | None
    brought: Brought = NOTHING


Sums = Sequence[tuple[np.ndarray, Sequence[Selection], float]]
"""What is added up for several tensors: out, parts and factor of each, as ``Kernels.assemble``."""
Surplus = Sequence[tuple[np.ndarray, Selection]]
"""Entries that passes took and that stay after all: the vector that each tensor's go back to."""


class Kernels(Packers, Protocol):
    """The functions of an engine.  All vectors are 1-D, C-contiguous, float32 or float64."""

    def moments(self, x: np.ndarray) -> Moments:
        """Return sum and maximum of the magnitudes, and the count of non-zeros."""

    def mean_and_std(self, x: np.ndarray) -> tuple[float, float]:
        """Return mean and standard deviation (n - 1) of the signed entries, in float64."""

    def tail(self, x: np.ndarray, threshold: float) -> Tail:
        """Return the statistics of the magnitudes above a threshold; of all non-zeros for 0."""

    def digit_counts(self, x: np.ndarray, shift: int, prefix: int) -> np.ndarray:
        """Count the bytes at bit ``shift`` of the magnitudes whose higher bits are ``prefix``:
        int64 [256]."""

    def chunk_norms(self, x: np.ndarray, length: int) -> np.ndarray:
        """Return the sums of magnitudes of chunks of ``length`` entries, the last one shorter.

        They are accumulated in float64 and returned in x's dtype.
        """

    def sample_magnitudes(self, x: np.ndarray, start: int, stride: int) -> np.ndarray:
        """Return |x[start::stride]|."""

    def count_at_least(self, x: np.ndarray, threshold: float) -> int:
        """Count the magnitudes that are at least the threshold."""

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        """Return the entries whose magnitudes are at least the threshold; zeros never."""

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        """Return ``count_at_least`` and ``take_at_least`` of a threshold above 0, in one pass.

        The selection is None if it would have more than ``capacity`` entries.
        """

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        """Return the count of non-zeros that reach the threshold, and these entries.

        If they are more than ``most``, the largest of them are returned, and the count may be any
        number above ``most``. Time and memory are bounded, however many reach it.
        """

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        """Return the ``count`` largest magnitudes, or all non-zeros where there are fewer."""

    def take_indices(self, x: np.ndarray, indices: np.ndarray) -> Selection:
        """Return the entries at ascending indices, zeros included."""

    def take_bins(
        self, accumulated: np.ndarray, gradient: np.ndarray, length: int
    ) -> tuple[np.ndarray, Selection]:
        """Return every bin's largest |accumulated|, and the entries with |accumulated + gradient|
        at least that of their bin.

        Bins have ``length`` entries, the last one fewer; zeros are never taken.
        """

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        """Write out = residual + gradient, and return its moments.

        Where the sum is not finite ``out`` keeps the residual's entry. ``out`` may be ``residual``
        itself.
        """

    def accumulate_and_take(
        self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
    ) -> Taking:
        """Accumulate, and take the entries that reach the aim: they are +0.0 in ``out``.

        Nothing is taken beyond the aim's capacity, and no entry whose sum is not finite.
        """

    def trim(self, taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
        """Return the ``count`` largest of the taken entries, and the smallest magnitude among them.

        If there are fewer, all that are neither zero nor NaN are returned; the magnitude of none is
        0.

        Parameters
        ----------
        taken : any entries, with ascending indices
        out : the vector they were taken from, to which the others go back; None if they were only
            copied
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
        """Push the velocity, accumulate it, and take the entries that reach the aim.

        This is ``push_momentum`` to ``out_velocity``, then ``accumulate_and_take`` of the result,
        or with Nesterov's form of gradient + momentum * the result.  Every new vector may be the
        old one.
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

        Every new vector may be the old one.
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
        """Write Adam's moments with this gradient in them, and their direction.

            out_mean = beta1 * mean + (1 - beta1) * gradient
            out_square = beta2 * square + (1 - beta2) * gradient**2
            m, s = both, without the bias of their start
            average = s / ranks + min(m**2, s) * (1 - 1 / ranks)
            out = (gradient / (sqrt(average) + epsilon) + 0 * average) * scale

        Every operation is rounded to the dtype, in this order. The last sum is NaN where a square
        leaves the dtype, which the division would hide. With ``step.is_of_mean`` m is divided
        instead of the gradient. The new moments may be the old vectors; ``out`` is another vector
        than all others.
        """

    def orthogonalized(self, x: np.ndarray, step: NewtonSchulz) -> np.ndarray:
        """Return the matrices in x after the iteration of Newton and Schulz, in a new vector.

            x = x / (norm of the matrix + epsilon)
            step.steps times: x = a * x + (b * (x @ x.T) + c * (x @ x.T) @ (x @ x.T)) @ x

        A matrix of zeros stays one.  NaN or Inf anywhere in a matrix makes all of it NaN.  A device
        works in bfloat16 where x is float32.
        """

    def clear(self, residual: np.ndarray, indices: np.ndarray) -> None:
        """Write residual[indices] = +0.0."""

    def assemble(self, out: np.ndarray, parts: Sequence[Selection], factor: float = 1.0) -> None:
        """Write out = the sum of factor * the selections, each entry added up in their order; 0
        elsewhere.

        The factor is rounded to the dtype, and each product is rounded before it is added.
        """

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        """Do ``assemble`` for all sums of a bucket and ``restore`` for its surplus; on a device in
        few launches."""

    def scatter_add(self, out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
        """Write out[indices] += values, for indices that are unique."""


Zeros = Callable[[int, DTypeLike], np.ndarray]
"""Makes a vector of zeros, given its entries and their dtype, where a tensor's vectors lie."""


class Engine(Protocol):
    """A choice of kernels: a frozen dataclass, registered in ``ENGINES``."""

    id: ClassVar[str]

    @property
    def kernels(self) -> Kernels:
        """Return the functions, compiled where they have to be."""
