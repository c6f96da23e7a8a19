"""Checks that a fused pass, which updates an optimizer's memory and takes entries, gives the same
results as the two separate kernels."""

import numpy as np
from conformance.hostile import bits, entry_bits
from conformance.kernel_checks import rounded, untouched
from conformance.statistics_checks import ADAM_STEPS

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.kernels.optimizers import Adam, Decay, Momentum


def check_take_by_decay(kernels, x):
    parameter = np.nan_to_num(x)
    _check(kernels, lambda: Decay(parameter, 0.1), x[::-1].copy(), [], 3)


def check_take_by_momentum(kernels, x):
    gradient, velocity = x[::-1].copy(), np.nan_to_num(x)
    for nesterov in (False, True):
        _check(kernels, _momentum(nesterov), gradient, [velocity], 3)


def check_take_by_adam(kernels, x):
    gradient, old = x[::-1].copy(), [x, np.abs(x[::2]).repeat(2)[: x.size].copy()]
    for step in ADAM_STEPS:
        _check(kernels, _adam(step), gradient, old, 3)


def check_large_directions(kernels, dtype):
    rng, size = np.random.default_rng(6), (1 << 22) // np.dtype(dtype).itemsize + 37
    gradient, mean, square = (rng.laplace(size=size).astype(dtype) for _ in range(3))
    gradient[rng.integers(size, size=9)] = [np.nan, np.inf, -np.inf] * 3
    old = [mean, np.abs(square)]
    with np.errstate(over="ignore", invalid="ignore"):
        _check(kernels, lambda: Decay(mean, 0.1), gradient, [], 2)
        _check(kernels, _momentum(True), gradient, [mean], 2)
        _check(kernels, _adam(ADAM_STEPS[1]), gradient, old, 2)


def _momentum(nesterov):
    return lambda old, new: Momentum(old, new, 0.9, nesterov)


def _adam(step):
    return lambda *vectors: Adam(*vectors, step)


def _check(kernels, make, gradient, old, aims):
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
            out = given if in_place else [_other(each) for each in given]
            with untouched(gradient, *([] if in_place else given)):
                pushing = make(*given[:-1], *out[:-1])
                taking = kernels.accumulate_and_take(gradient, given[-1], out[-1], aim, pushing)
            for found, wanted in zip(out, (*pushed, rest)):
                assert bits(found) == bits(wanted)
            assert taking.nonfinite == expected.nonfinite
            assert entry_bits(taking.taken) == entry_bits(expected.taken)


def _other(x):
    out = aligned_zeros(x.size, x.dtype)
    out += x.dtype.type(9)
    return out
