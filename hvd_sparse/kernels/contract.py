"""The kernels: functions on arrays that selectors, codecs, memories and the step call.

``Kernels`` defines them in plain numpy, and tests compare the faster engines with it. All engines
follow these rules, so that they give equal results:

* An entry reaches a threshold if ``abs(x) >= dtype(threshold)``, with the data's dtype. So no entry
  reaches NaN.
* A kernel that takes entries returns their indices and values. Of equal magnitudes, the lower index
  is taken first. Indices are uint32, ascending and unique.
* Exact zeros and NaN are never taken.
* Engines give equal bits, except that ``orthogonalized`` and sums of many entries (``moments``,
  ``mean_and_std``, ``tail``, ``chunk_norms``) may differ in their last digits.
* A kernel writes only to ``out``, ``out_...`` and a ``Direction``'s new vectors.
  ``assemble_together`` writes to all vectors that it gets, and ``send_rows`` and ``sum_rows`` also
  write to their tables and buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.kernels.optimizers import LEAST_PART, Direction, NewtonSchulz, iterated, operands
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection


@dataclass(frozen=True)
class Moments:
    """Statistics of a vector's magnitudes.

    abs_sum : sum of magnitudes, accumulated in float64; NaN or Inf if any entry is NaN or Inf
    abs_max : largest magnitude; NaN if any entry is NaN
    nonzeros : number of entries that are not zero
    numel : number of all entries
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
    """Statistics of the entries that reach a threshold. An entry's excess is |x| - threshold.

    count : number of these entries
    mean, variance : mean and population variance of the excesses
    mean_log : mean of ln(excess) over the excesses above 0
    """

    count: int
    mean: float
    variance: float
    mean_log: float


class Aim(NamedTuple):
    """The condition by which ``accumulate_and_take`` takes entries, and replaces them by 0, while
    it adds the gradient.

    threshold : magnitude that an entry must reach, above 0; if the dtype rounds the threshold to 0,
        all non-zeros are taken
    capacity : if more entries than this number reach the threshold, none is taken
    """

    threshold: float
    capacity: int


class Taking(NamedTuple):
    """The result of ``accumulate_and_take``.

    nonfinite : number of entries of residual + gradient that are NaN or Inf
    taken : the entries that reached the aim's threshold; None if these were more than the aim's
        capacity
    """

    nonfinite: int
    taken: Selection | None


Sums = Sequence[tuple[np.ndarray, Sequence[Selection], float]]
"""For each tensor, the arguments ``out``, ``parts`` and ``factor`` of ``Kernels.assemble``."""
Surplus = Sequence[tuple[np.ndarray, Selection]]
"""Entries that were taken but not sent: for each tensor, its vector and the entries to put back."""
Zeros = Callable[[int, DTypeLike], np.ndarray]
"""Function of a number of entries and a dtype, which returns a vector of zeros on some device."""


class Kernels(Packers):
    """The kernels in numpy. All vectors are 1-D, C-contiguous, and float32 or float64."""

    most_in_row: float = 0
    """``send_rows`` and ``sum_rows`` process tensors of at most this many entries, because several
    threads are faster on longer tensors. 0 if the engine lacks these two kernels."""

    def moments(self, x: np.ndarray) -> Moments:
        magnitudes = np.abs(x)
        abs_sum, abs_max = float(magnitudes.sum(dtype=np.float64)), float(magnitudes.max(initial=0))
        return Moments(abs_sum, abs_max, int(np.count_nonzero(x)), x.size)

    def mean_and_std(self, x: np.ndarray) -> tuple[float, float]:
        """Return the mean and the standard deviation (divisor n - 1) of the entries, in float64."""
        with np.errstate(invalid="ignore"):
            mean = float(x.mean(dtype=np.float64)) if x.size else 0.0
            std = float(x.std(dtype=np.float64, ddof=1)) if x.size > 1 else 0.0
        return mean, std

    def tail(self, x: np.ndarray, threshold: float) -> Tail:
        """Return statistics of the entries that reach the threshold. A threshold of 0 is reached by
        all non-zeros."""
        magnitudes = np.abs(x)
        rounded = x.dtype.type(threshold)
        above = magnitudes[_reaching(magnitudes, threshold)]
        if not above.size:
            return Tail(0, 0.0, 0.0, 0.0)
        with np.errstate(invalid="ignore"):
            excesses = above.astype(np.float64) - float(rounded)
            positive = excesses[excesses > 0]
            mean_log = float(np.log(positive).mean()) if positive.size else 0.0
            return Tail(excesses.size, float(excesses.mean()), float(excesses.var()), mean_log)

    def digit_counts(self, x: np.ndarray, shift: int, prefix: int) -> np.ndarray:
        """Count the values of one byte of the magnitudes' bit patterns: the byte that starts at bit
        ``shift``. Return how often it has each value, int64 [256]. Only patterns in which the bits
        above this byte equal ``prefix`` are counted."""
        bits: np.ndarray = np.abs(x).view(f"u{x.itemsize}")
        if 8 * x.itemsize - shift - 8:
            bits = bits[bits >> np.array(shift + 8, bits.dtype) == prefix]
        digits = (bits >> np.array(shift, bits.dtype)).astype(np.uint8)
        return np.bincount(digits, minlength=256).astype(np.int64)

    def chunk_norms(self, x: np.ndarray, length: int) -> np.ndarray:
        """Return the sum of magnitudes of every chunk of ``length`` entries: [chunks] in x's dtype,
        accumulated in float64. The last chunk may be shorter."""
        if not x.size:
            return np.empty(0, x.dtype)
        sums: np.ndarray = np.add.reduceat(
            np.abs(x), np.arange(0, x.size, length), dtype=np.float64
        )
        with np.errstate(over="ignore"):  # the largest magnitudes may overflow
            return sums.astype(x.dtype)

    def take_at_least(self, x: np.ndarray, threshold: float) -> Selection:
        """Return the non-zero entries whose magnitudes are at least the threshold."""
        return _take(x, _reaching(np.abs(x), threshold))

    def count_and_take(
        self, x: np.ndarray, threshold: float, capacity: int
    ) -> tuple[int, Selection | None]:
        """Return the number of non-zero entries that reach the threshold, and these entries. If
        there are more than ``capacity``, None is returned in place of the entries."""
        taken = self.take_at_least(x, threshold)
        return taken.count, taken if taken.count <= capacity else None

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        """Return the number of non-zero entries that reach the threshold, and these entries. If
        they are more than ``most``, return any number above ``most``, and only the ``most`` entries
        of largest magnitude."""
        count, taken = self.count_and_take(x, threshold, most)
        return count, self.take_largest(x, most) if taken is None else taken

    def take_largest(self, x: np.ndarray, count: int) -> Selection:
        """Return the ``count`` entries of largest magnitude, or all non-zeros if there are fewer
        than ``count``."""
        if count <= 0 or x.size == 0:
            return Selection.empty(x.size, x.dtype)
        return _take(x, _largest(x, min(count, x.size)))

    def take_bins(
        self, accumulated: np.ndarray, gradient: np.ndarray, length: int
    ) -> tuple[np.ndarray, Selection]:
        """Divide the vectors into bins of ``length`` entries; the last bin may have fewer. Return
        the largest |accumulated| of each bin, [bins], and a selection: the non-zero entries of
        ``accumulated`` at which |accumulated + gradient| is at least the largest |accumulated| of
        their bin. The vectors are on the host."""
        if not accumulated.size:
            return np.empty(0, accumulated.dtype), Selection.empty(0, accumulated.dtype)
        maxima = np.maximum.reduceat(np.abs(accumulated), np.arange(0, accumulated.size, length))
        limits = np.repeat(maxima, length)[: accumulated.size]
        reaches = np.abs(accumulated + gradient) >= limits
        return maxima, _take(accumulated, reaches & (limits > 0) & (accumulated != 0))

    def accumulate(self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
        """Write out = residual + gradient and return the moments of this sum. Where the sum is NaN
        or Inf, ``out`` gets the residual's entry. ``out`` may be ``residual``."""
        with np.errstate(invalid="ignore", over="ignore"):  # shown by the moments
            accumulated = residual + gradient
        found = self.moments(accumulated)
        if not found.is_finite:
            accumulated = np.where(np.isfinite(accumulated), accumulated, residual)
        np.copyto(out, accumulated)
        return found

    def accumulate_and_take(
        self,
        gradient: np.ndarray,
        residual: np.ndarray,
        out: np.ndarray,
        aim: Aim,
        direction: Direction | None = None,
    ) -> Taking:
        """Write out = residual + gradient, and take the finite entries of this sum that reach the
        aim's threshold: return them, and set them to +0.0 in ``out``. If they are more than the
        aim's capacity, take none. Where the sum is NaN or Inf, ``out`` gets the residual's entry.
        If a direction is given, add the result of ``directed`` instead of the gradient."""
        if direction is not None:
            gradient = self.directed(gradient, direction)
        with np.errstate(invalid="ignore", over="ignore"):  # counted below
            accumulated = residual + gradient
        magnitudes = np.abs(accumulated)
        finite = magnitudes < np.inf
        taken = _take(accumulated, _reaching(magnitudes, aim.threshold) & finite)
        np.copyto(out, np.where(finite, accumulated, residual))
        fits = taken.count <= aim.capacity
        if fits:
            out[taken.indices] = 0.0
        nonfinite = out.size - int(np.count_nonzero(finite))
        return Taking(nonfinite, taken if fits else None)

    def directed(self, gradient: np.ndarray, direction: Direction) -> np.ndarray:
        """Return an optimizer's direction (its update without the learning rate) for this gradient.
        Also write the optimizer's new vectors (velocity or moments), which may be the same arrays
        as the old ones. The direction is a new vector, except that momentum without Nesterov's form
        returns the new velocity itself. All engines do the operations in the order below, and round
        each result to the dtype."""
        with np.errstate(over="ignore", invalid="ignore"):  # the result is then Inf or NaN
            found: np.ndarray = self._directed(gradient, *operands(direction, gradient.dtype))
        return found

    _library: Any = np
    _root = staticmethod(np.sqrt)

    def _directed(self, gradient: Any, vectors: Sequence[Any], numbers: Sequence[Any]) -> Any:
        """Compute ``directed`` from the results of ``operands``. The vectors are arrays of numpy
        or, in engine ``torch``, tensors."""
        library = self._library
        if len(vectors) == 1:
            return vectors[0] * numbers[0] + gradient
        if len(vectors) == 2:
            velocity, pushed = vectors
            factor, is_nesterov = numbers
            library.multiply(velocity, factor, out=pushed)
            pushed += gradient
            return gradient + pushed * factor if is_nesterov else pushed
        mean, square, out_mean, out_square = vectors
        beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale, is_of_mean = (
            numbers
        )
        first = mean * unbias1  # now, because ``out_mean`` may be the same array
        library.add(mean * beta1, gradient * rest1, out=out_mean)
        present = gradient * gradient * rest2
        library.add(square * beta2, present, out=out_square)
        if is_of_mean:
            first = out_mean * unbias1
        second = out_square * unbias2
        average = second * own + library.minimum(first * first, second) * others
        average = library.maximum(average, present * unbias2 * LEAST_PART)
        top = first if is_of_mean else gradient
        # If the average overflowed to infinity, the quotient is 0, which would hide the overflow.
        # So add average * 0, which is NaN in this case and otherwise 0.
        return (top / (self._root(average) + epsilon) + average * 0.0) * scale

    def trim(self, taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
        """Return the ``count`` largest of the taken entries, without zeros and NaN, and the
        smallest magnitude of the returned entries (0 if none are returned). ``out`` is the vector
        from which the entries were taken: those that are not returned are written back to it. With
        None, nothing is written, because the vector still has them."""
        kept = np.zeros(taken.count, bool)
        if count > 0 and taken.count:
            kept = _largest(taken.values, min(count, taken.count))
        if out is not None:
            out[taken.indices[~kept]] = taken.values[~kept]
        values = taken.values[kept]
        threshold = float(np.abs(values).min()) if values.size else 0.0
        return Selection(taken.indices[kept], values, taken.numel), threshold

    def orthogonalized(self, x: np.ndarray, step: NewtonSchulz) -> np.ndarray:
        """Return the matrices in x after the Newton-Schulz iteration (``NewtonSchulz``), in a new
        vector. Each matrix is first divided by its Frobenius norm + epsilon. A matrix with NaN or
        Inf becomes all NaN. On devices, float32 matrices are iterated in bfloat16."""
        matrices, axes = x.reshape(step.shape), (-2, -1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            # Divide by the largest entry first, so that squares do not overflow.
            largest = np.abs(matrices).max(axis=axes, keepdims=True, initial=0)
            matrices = matrices / np.where(largest == 0, x.dtype.type(1), largest)
            norm = np.sqrt((matrices * matrices).sum(axis=axes, keepdims=True))
            epsilon = x.dtype.type(step.epsilon) / largest
            result: np.ndarray = iterated(matrices / (norm + epsilon), step)
        return np.ascontiguousarray(result).reshape(-1)

    def assemble(self, out: np.ndarray, parts: Sequence[Selection], factor: float = 1.0) -> None:
        """Write to ``out`` the sum of the selections ``parts``, times ``factor``, and 0 at entries
        that no part has. Parts are added in their order. The factor is first rounded to the dtype,
        and each value times the factor, too."""
        out[:] = 0
        for part in parts:
            out[part.indices] += part.values * out.dtype.type(factor)

    def assemble_together(self, sums: Sums, surplus: Surplus = ()) -> None:
        """Write the sums of a whole bucket. First put the entries of ``surplus``, which were taken
        but not sent, back into their vectors. Then call ``assemble`` with each item of ``sums``. On
        devices, this takes only a few kernel launches."""
        for vector, entries in surplus:
            vector[entries.indices] = entries.values
        for out, parts, factor in sums:
            self.assemble(out, parts, factor)

    def send_rows(
        self,
        rows: np.ndarray,
        first: int,
        head: int,
        frames: np.ndarray,
        lists: np.ndarray,
        body: int,
        dtype: np.dtype,
    ) -> tuple[int, np.ndarray, np.ndarray]:
        """For each row of a table, add a tensor's gradient to its residual, take entries and encode
        them as a frame. Stop at the first row that this kernel cannot process (see
        ``kernels.rows``), which the caller leaves to ``step.pipeline``.

        Return three results: the number of that row, or the number of all rows if there is none,
        and two arrays. The arrays begin with the indices and the values that were taken from that
        row's vector.

        rows : table of ``kernels.rows.SENT``, read and written
        first : number of the row to begin with
        head : the first 8 bytes of every frame, as an integer
        frames : uint8, aligned to 8 bytes; the frames are written here
        lists : uint8, as long as ``frames``. The entries are written here in the format ``PLAIN``,
            with the values that other ranks decode. If ``body`` is ``PLAIN``, ``lists`` must be
            ``frames`` itself
        body : format of the frames' bodies, ``kernels.rows.PLAIN`` or ``SIGNS``
        dtype : dtype of the vectors, float32 or float64
        """
        raise NotImplementedError

    def sum_rows(
        self, rows: np.ndarray, frames: np.ndarray, head: int, body: int, dtype: np.dtype
    ) -> None:
        """For each row of a table, decode the frames that have been received for a tensor. Add up
        their entries in the order of the frames, and write the sum times ``factor`` to ``out``;
        both are fields of the row. If a frame is damaged, or the sum might overflow, the field
        ``most`` becomes NaN, and ``out`` is not written.

        rows : table of ``kernels.rows.ARRIVED``, read and written
        frames : table of ``kernels.rows.FRAME``
        head, body, dtype : as in ``send_rows``
        """
        raise NotImplementedError


def _reaching(magnitudes: np.ndarray, threshold: float) -> np.ndarray:
    with np.errstate(over="ignore"):  # infinite if too large for the dtype
        rounded = magnitudes.dtype.type(threshold)
    reaching: np.ndarray = magnitudes > 0 if rounded <= 0 else magnitudes >= rounded
    return reaching


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    magnitudes = np.fmax(np.abs(x), 0)  # fmax turns NaN into 0: it is never taken
    smallest_kept = np.partition(magnitudes, x.size - count)[x.size - count]
    kept: np.ndarray = magnitudes > smallest_kept
    if smallest_kept > 0:
        # The indices of ties ascend, so the entries with the lower indices are kept.
        ties = np.flatnonzero(magnitudes == smallest_kept)
        kept[ties[: count - np.count_nonzero(kept)]] = True
    return kept


def _take(x: np.ndarray, kept: np.ndarray) -> Selection:
    indices = np.flatnonzero(kept)
    return Selection(indices.astype(np.uint32), x[indices], x.size)
