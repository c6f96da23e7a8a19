"""The reference kernels in plain numpy, written for clarity. Contract: ``kernels.contract``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.kernels import optimizers
from hvd_sparse.kernels.contract import Aim, Moments, Sums, Surplus, Tail, Taking
from hvd_sparse.kernels.optimizers import AdamStep, NewtonSchulz
from hvd_sparse.kernels.packing import *  # noqa: F403  (which an engine has too)
from hvd_sparse.types import Selection


def moments(x: np.ndarray) -> Moments:
    if x.size == 0:
        return Moments(0.0, 0.0, 0, 0)
    magnitudes = np.abs(x)
    return Moments(
        abs_sum=float(magnitudes.sum(dtype=np.float64)),
        abs_max=float(magnitudes.max()),
        nonzeros=int(np.count_nonzero(x)),
        numel=x.size,
    )


def mean_and_std(x: np.ndarray) -> tuple[float, float]:
    with np.errstate(invalid="ignore"):
        mean = float(x.mean(dtype=np.float64)) if x.size else 0.0
        std = float(x.std(dtype=np.float64, ddof=1)) if x.size > 1 else 0.0
    return mean, std


def tail(x: np.ndarray, threshold: float) -> Tail:
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


def digit_counts(x: np.ndarray, shift: int, prefix: int) -> np.ndarray:
    bits: np.ndarray = np.abs(x).view(f"u{x.itemsize}")
    width = 8 * x.itemsize - shift - 8
    if width:
        bits = bits[bits >> np.array(shift + 8, bits.dtype) == prefix]
    return np.bincount(
        (bits >> np.array(shift, bits.dtype)).astype(np.uint8), minlength=256
    ).astype(np.int64)


def chunk_norms(x: np.ndarray, length: int) -> np.ndarray:
    if not x.size:
        return np.empty(0, x.dtype)
    sums: np.ndarray = np.add.reduceat(np.abs(x), np.arange(0, x.size, length), dtype=np.float64)
    with np.errstate(over="ignore"):  # the largest magnitudes may overflow
        return sums.astype(x.dtype)


def sample_magnitudes(x: np.ndarray, start: int, stride: int) -> np.ndarray:
    magnitudes: np.ndarray = np.abs(x[start::stride])
    return magnitudes


def count_at_least(x: np.ndarray, threshold: float) -> int:
    with np.errstate(over="ignore"):  # infinite if too large for the dtype
        rounded = x.dtype.type(threshold)
    return int(np.count_nonzero(np.abs(x) >= rounded))


def take_at_least(x: np.ndarray, threshold: float) -> Selection:
    return _take(x, _reaching(np.abs(x), threshold))


def count_and_take(x: np.ndarray, threshold: float, capacity: int) -> tuple[int, Selection | None]:
    taken = take_at_least(x, threshold)
    return taken.count, taken if taken.count <= capacity else None


def take_at_most(x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
    taken = take_at_least(x, threshold)
    return taken.count, taken if taken.count <= most else take_largest(x, most)


def take_largest(x: np.ndarray, count: int) -> Selection:
    if count <= 0 or x.size == 0:
        return Selection.empty(x.size, x.dtype)
    return _take(x, _largest(x, min(count, x.size)))


def _largest(x: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the ``count`` largest magnitudes, without zeros and NaN."""
    magnitudes = np.fmax(np.abs(x), 0)  # fmax turns NaN into 0: it is never taken
    smallest_kept = np.partition(magnitudes, x.size - count)[x.size - count]
    kept: np.ndarray = magnitudes > smallest_kept
    if smallest_kept > 0:
        ties = np.flatnonzero(magnitudes == smallest_kept)  # ascending: the lower indices are kept
        kept[ties[: count - np.count_nonzero(kept)]] = True
    return kept


def trim(taken: Selection, count: int, out: np.ndarray | None) -> tuple[Selection, float]:
    kept = np.zeros(taken.count, bool)
    if count > 0 and taken.count:
        kept = _largest(taken.values, min(count, taken.count))
    if out is not None:
        out[taken.indices[~kept]] = taken.values[~kept]
    values = taken.values[kept]
    threshold = float(np.abs(values).min()) if values.size else 0.0
    return Selection(taken.indices[kept], values, taken.numel), threshold


def restore(out: np.ndarray, selection: Selection) -> None:
    out[selection.indices] = selection.values


def take_indices(x: np.ndarray, indices: np.ndarray) -> Selection:
    return Selection(indices, x[indices], x.size)


def take_bins(
    accumulated: np.ndarray, gradient: np.ndarray, length: int
) -> tuple[np.ndarray, Selection]:
    if not accumulated.size:
        return np.empty(0, accumulated.dtype), Selection.empty(0, accumulated.dtype)
    maxima = np.maximum.reduceat(np.abs(accumulated), np.arange(0, accumulated.size, length))
    limits = np.repeat(maxima, length)[: accumulated.size]
    reaches = np.abs(accumulated + gradient) >= limits
    return maxima, _take(accumulated, reaches & (limits > 0) & (accumulated != 0))


def accumulate(gradient: np.ndarray, residual: np.ndarray, out: np.ndarray) -> Moments:
    with np.errstate(invalid="ignore", over="ignore"):  # shown by the moments
        accumulated = residual + gradient
    found = moments(accumulated)
    np.copyto(
        out,
        accumulated
        if found.is_finite
        else np.where(np.isfinite(accumulated), accumulated, residual),
    )
    return found


def accumulate_and_take(
    gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
) -> Taking:
    with np.errstate(invalid="ignore", over="ignore"):  # counted below
        accumulated = residual + gradient
    magnitudes = np.abs(accumulated)
    finite = magnitudes < np.inf
    taken = _take(accumulated, _reaching(magnitudes, aim.threshold) & finite)
    np.copyto(out, np.where(finite, accumulated, residual))
    if taken.count <= aim.capacity:
        clear(out, taken.indices)
    nonfinite = out.size - int(np.count_nonzero(finite))
    return Taking(
        float(magnitudes.sum(dtype=np.float64)),
        nonfinite,
        taken if taken.count <= aim.capacity else None,
    )


def push_momentum(
    gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, momentum: float
) -> None:
    np.multiply(residual, out.dtype.type(momentum), out=out)
    np.add(out, gradient, out=out)


def push_adam(
    gradient: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    out_mean: np.ndarray,
    out_square: np.ndarray,
    out: np.ndarray,
    step: AdamStep,
) -> None:
    beta1, rest1, unbias1, beta2, rest2, unbias2, own, others, epsilon, scale = step.factors(
        out.dtype
    )
    with np.errstate(over="ignore", invalid="ignore"):  # shown by the result
        out_mean[:] = mean * beta1 + gradient * rest1
        out_square[:] = square * beta2 + gradient * gradient * rest2
        first, second = out_mean * unbias1, out_square * unbias2
        average = second * own + np.minimum(first * first, second) * others
        top = first if step.is_of_mean else gradient
        # Infinity times 0 gives NaN, because the division by an infinite square would hide the
        # overflow.
        direction = top / (np.sqrt(average) + epsilon) + average * out.dtype.type(0)
        np.multiply(direction, scale, out=out)


def push_momentum_and_take(
    gradient: np.ndarray,
    velocity: np.ndarray,
    out_velocity: np.ndarray,
    residual: np.ndarray,
    out: np.ndarray,
    momentum: float,
    nesterov: bool,
    aim: Aim,
) -> Taking:
    push_momentum(gradient, velocity, out_velocity, momentum)
    direction = out_velocity
    if nesterov:
        direction = gradient + out_velocity * out_velocity.dtype.type(momentum)
    return accumulate_and_take(direction, residual, out, aim)


def push_adam_and_take(
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
    direction = np.empty_like(out)
    push_adam(gradient, mean, square, out_mean, out_square, direction, step)
    return accumulate_and_take(direction, residual, out, aim)


def orthogonalized(x: np.ndarray, step: NewtonSchulz) -> np.ndarray:
    matrices, axes = x.reshape(step.shape), (-2, -1)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        # Divide by the largest entry first, so that squares do not overflow.
        largest = np.abs(matrices).max(axis=axes, keepdims=True, initial=0)
        matrices = matrices / np.where(largest == 0, x.dtype.type(1), largest)
        norm = np.sqrt((matrices * matrices).sum(axis=axes, keepdims=True))
        epsilon = x.dtype.type(step.epsilon) / largest
        result: np.ndarray = optimizers.iterated(matrices / (norm + epsilon), step)
    return np.ascontiguousarray(result).reshape(-1)


def clear(residual: np.ndarray, indices: np.ndarray) -> None:
    residual[indices] = 0


def assemble(out: np.ndarray, parts: Sequence[Selection], factor: float = 1.0) -> None:
    out[:] = 0
    for part in parts:
        scatter_add(out, part.indices, part.values * out.dtype.type(factor))


def assemble_together(sums: Sums, surplus: Surplus = ()) -> None:
    for out, parts, factor in sums:
        assemble(out, parts, factor)
    for vector, selection in surplus:
        restore(vector, selection)


def scatter_add(out: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    out[indices] += values


def _reaching(magnitudes: np.ndarray, threshold: float) -> np.ndarray:
    """Return a mask of the magnitudes of at least the rounded threshold, without zeros."""
    with np.errstate(over="ignore"):  # infinite if too large for the dtype
        rounded = magnitudes.dtype.type(threshold)
    reaching: np.ndarray = magnitudes >= rounded if rounded > 0 else magnitudes > 0
    return reaching


def _take(x: np.ndarray, kept: np.ndarray) -> Selection:
    indices = np.flatnonzero(kept)
    return Selection(indices.astype(np.uint32), x[indices], x.size)
