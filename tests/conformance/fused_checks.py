"""Checks of the fused pass and its lists against results that are computed entry by entry, and of
the pass that also updates an optimizer's memory against the two separate kernels."""

import math

import numpy as np
from conformance import hostile
from conformance.hostile import bits, entry_bits, nines
from conformance.kernel_checks import (
    PER_VECTOR,
    assert_moments,
    assert_takes,
    check_sum_is_wide,
    check_threshold_is_rounded,
    has_statistics,
    rounded,
    thresholds,
    untouched,
    vectors,
)
from conformance.packing_checks import PACKING
from conformance.statistics_checks import ADAM_STEPS, ON_FINITE_DATA, check_orthogonalized

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.optimizers import Adam, Decay, Momentum
from hvd_sparse.types import Selection


def sums(x):
    """Return a residual for a gradient, their sum, and the new residual, which equals the sum
    except where the sum is not finite; there it is the old residual."""
    residual = np.nan_to_num(0.5 * x[::-1]).copy()
    total = np.array([a + b for a, b in zip(residual, x)], x.dtype)
    return residual, total, np.where(np.isfinite(total), total, residual)


def check_accumulate(kernels, x):
    residual, total, kept = sums(x)
    out = np.full_like(x, 9)
    with untouched(x, residual):
        moments = kernels.accumulate(x, residual, out)
    assert bits(out) == bits(kept)
    assert_moments(moments, total)
    in_place = residual.copy()
    with untouched(x):
        kernels.accumulate(x, in_place, in_place)
    assert bits(in_place) == bits(kept), "in place is not the same"


def check_accumulate_and_take(kernels, x):
    residual, total, kept = sums(x)
    for threshold in thresholds(total):
        if threshold <= 0:
            continue
        cut = rounded(threshold, x.dtype)
        reach = [
            i for i, v in enumerate(total.tolist()) if math.isfinite(v) and v != 0 and abs(v) >= cut
        ]
        for capacity in {0, 1, len(reach) - 1, len(reach), x.size, x.size + 7} - {-1}:
            aim, rest = Aim(threshold, capacity), kept.copy()
            if len(reach) <= capacity:
                rest[reach] = 0
            for in_place in (False, True):
                out = residual.copy() if in_place else np.full_like(x, 9)
                with untouched(x, residual):
                    taking = kernels.accumulate_and_take(x, out if in_place else residual, out, aim)
                assert taking.nonfinite == sum(not math.isfinite(v) for v in total.tolist())
                if len(reach) > capacity:
                    assert taking.taken is None
                else:
                    assert_takes(taking.taken, total, reach)
                assert bits(out) == bits(rest), "what stays is not all that was not taken"


def check_trim(kernels, x):
    numel = 3 * x.size + 1
    taken = Selection((3 * np.arange(x.size) + 1).astype(np.uint32), x.copy(), numel)
    takeable = [i for i, v in enumerate(x.tolist()) if v == v and v != 0]
    by_size = sorted(takeable, key=lambda i: (-abs(float(x[i])), i))
    for count in {0, 1, len(takeable) // 3, len(takeable) - 1, len(takeable), x.size + 3} - {-1}:
        kept = sorted(by_size[:count])
        left = sorted(set(range(x.size)) - set(kept))
        out = np.full(numel, 9, x.dtype)
        with untouched(taken.indices, taken.values):
            (selection, threshold), (alone, _) = (
                kernels.trim(taken, count, o) for o in (out, None)
            )
        rest = np.full(numel, 9, x.dtype)
        rest[taken.indices[left]] = x[left]
        assert bits(out) == bits(rest), "not exactly the rest went back"
        assert threshold == min((abs(x[i]) for i in kept), default=0.0)
        for one in (selection, alone):
            assert one.numel == numel
            assert one.indices.dtype == np.uint32
            assert one.indices.tolist() == taken.indices[kept].tolist()
            assert one.values.tobytes() == x[np.array(kept, np.intp)].tobytes()


def check_take_by_decay(kernels, x):
    parameter = np.nan_to_num(x)
    _check_directed(kernels, lambda: Decay(parameter, 0.1), x[::-1].copy(), [], 3)


def check_take_by_momentum(kernels, x):
    gradient, velocity = x[::-1].copy(), np.nan_to_num(x)
    for nesterov in (False, True):
        _check_directed(kernels, _momentum(nesterov), gradient, [velocity], 3)


def check_take_by_adam(kernels, x):
    gradient, old = x[::-1].copy(), [x, np.abs(x[::2]).repeat(2)[: x.size].copy()]
    for step in ADAM_STEPS:
        _check_directed(kernels, _adam(step), gradient, old, 3)


def check_large_directions(kernels, dtype):
    rng, size = np.random.default_rng(6), (1 << 18) // np.dtype(dtype).itemsize + 37
    gradient, mean, square = (rng.laplace(size=size).astype(dtype) for _ in range(3))
    gradient[rng.integers(size, size=9)] = [np.nan, np.inf, -np.inf] * 3
    old = [mean, np.abs(square)]
    with np.errstate(over="ignore", invalid="ignore"):
        _check_directed(kernels, lambda: Decay(mean, 0.1), gradient, [], 2)
        _check_directed(kernels, _momentum(True), gradient, [mean], 2)
        _check_directed(kernels, _adam(ADAM_STEPS[1]), gradient, old, 2)


def _momentum(nesterov):
    return lambda old, new: Momentum(old, new, 0.9, nesterov)


def _adam(step):
    return lambda *vectors: Adam(*vectors, step)


def _check_directed(kernels, make, gradient, old, aims):
    size, dtype = gradient.size, gradient.dtype
    residual = np.nan_to_num(0.5 * (old[0] if old else gradient)[::-1]).astype(dtype)
    pushed = [np.full_like(each, 9) for each in old]
    direction = reference.directed(gradient, make(*old, *pushed))
    finite = np.abs(residual + direction)
    finite = np.sort(finite[np.isfinite(finite)])[::-1]
    few = float(finite[finite.size // 50]) if finite.size else 1.0
    for threshold, capacity in ((few, size), (few, max(1, size // 100)), (0.1, size))[:aims]:
        if not rounded(threshold, dtype) > 0:
            continue
        aim, rest = Aim(threshold, capacity), np.full_like(residual, 9)
        expected = reference.accumulate_and_take(direction, residual, rest, aim)
        for in_place in (False, True):
            given = [each.copy() for each in (*old, residual)]
            out = given if in_place else [nines(each.size, each.dtype) for each in given]
            with untouched(gradient, *([] if in_place else given)):
                pushing = make(*given[:-1], *out[:-1])
                taking = kernels.accumulate_and_take(gradient, given[-1], out[-1], aim, pushing)
            for found, wanted in zip(out, (*pushed, rest)):
                assert bits(found) == bits(wanted)
            assert taking.nonfinite == expected.nonfinite
            assert entry_bits(taking.taken) == entry_bits(expected.taken)


FUSED = (
    check_accumulate,
    check_accumulate_and_take,
    check_trim,
    check_take_by_decay,
    check_take_by_momentum,
)
OF_FINITE = (*ON_FINITE_DATA, check_take_by_adam)
OF_A_VECTOR = PER_VECTOR + FUSED + OF_FINITE
OF_A_DTYPE = (check_large_directions, check_orthogonalized, hostile.check_beside_the_reference)
ALONE = (check_threshold_is_rounded, check_sum_is_wide, *PACKING)


def put(check, kernels, x):
    """Check the kernels on a vector, if the check is not only for finite data or the vector is."""
    if check not in OF_FINITE or has_statistics(x):
        with np.errstate(over="ignore", invalid="ignore"):
            check(kernels, x)


def check_kernels(kernels):
    for check in ALONE:
        check(kernels)
    for dtype in ("float32", "float64"):
        for x in vectors(dtype):
            for check in OF_A_VECTOR:
                put(check, kernels, x)
        for check in OF_A_DTYPE:
            check(kernels, dtype)
