"""Checks, on finite data, of the kernels that only some selectors or memories need, against results
computed entry by entry."""

import math

import numpy as np
from conformance.hostile import bits
from conformance.kernel_checks import rounded, untouched

from hvd_sparse.kernels.optimizers import LEAST_PART, Adam, AdamStep, Decay, Momentum, NewtonSchulz


def is_close(a, b, scale):
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12 * scale)


def check_mean_and_std(kernels, x):
    values = x.tolist()
    with untouched(x):
        mean, std = kernels.mean_and_std(x)
    scale = max(map(abs, values), default=0.0)
    expected = math.fsum(values) / len(values) if values else 0.0
    squares = math.fsum((v - expected) ** 2 for v in values)
    assert is_close(mean, expected, scale)
    assert is_close(std, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0, scale)


def check_tail(kernels, x):
    magnitudes = [abs(v) for v in x.tolist()]
    for threshold in (0.0, 0.1, float(np.median(np.abs(x))) if x.size else 1.0, 1e30, math.nan):
        cut = rounded(threshold, x.dtype)
        with untouched(x):
            tail = kernels.tail(x, threshold)
        excesses = [v - cut for v in magnitudes if (v > 0 if cut <= 0 else v >= cut)]
        assert tail.count == len(excesses)
        mean = math.fsum(excesses) / max(1, len(excesses))
        variance = math.fsum((e - mean) ** 2 for e in excesses) / max(1, len(excesses))
        logs = [math.log(e) for e in excesses if e > 0]
        scale = max(excesses, default=0.0)
        assert is_close(tail.mean, mean, scale)
        assert math.isclose(tail.variance, variance, rel_tol=1e-9, abs_tol=1e-12 * scale * scale)
        assert is_close(tail.mean_log, math.fsum(logs) / max(1, len(logs)), 1.0)


def check_digit_counts(kernels, x):
    width = 8 * x.itemsize
    bits = [int.from_bytes(abs(v).tobytes(), "little") for v in x]
    for shift in range(width - 8, -1, -8):
        for prefix in {0, *(b >> (shift + 8) for b in bits[:3])}:
            expected = [0] * 256
            for b in bits:
                if b >> (shift + 8) == prefix:
                    expected[(b >> shift) & 255] += 1
            with untouched(x):
                counts = kernels.digit_counts(x, shift, prefix)
            assert (counts.dtype, counts.tolist()) == (np.int64, expected)


def check_chunk_norms(kernels, x):
    for length in (1, 7, 256, 1_000):
        with untouched(x):
            norms = kernels.chunk_norms(x, length)
        values = x.tolist()
        expected = [
            math.fsum(map(abs, values[i : i + length])) for i in range(0, len(values), length)
        ]
        assert norms.dtype == x.dtype
        tolerance = 1e-6 if x.itemsize == 4 else 1e-12
        assert np.allclose(
            norms, np.array(expected, x.dtype), rtol=tolerance, atol=float(np.finfo(x.dtype).tiny)
        )


def check_take_bins(kernels, x):
    gradient = x[::-1].copy()
    for length in (1, 7, 300):
        with untouched(x, gradient):
            maxima, taken = kernels.take_bins(x, gradient, length)
        expected = [max(map(abs, x[i : i + length])) for i in range(0, x.size, length)]
        assert maxima.tobytes() == np.array(expected, x.dtype).tobytes()
        indices = [
            i
            for i in range(x.size)
            if x[i] != 0 and abs(x[i] + gradient[i]) >= expected[i // length]
        ]
        assert (taken.indices.dtype, taken.indices.tolist()) == (np.uint32, indices)
        assert taken.values.tobytes() == x[indices].tobytes()


def check_directed_by_decay(kernels, x):
    gradient, factor = x[::-1].copy(), x.dtype.type(0.1)
    expected = np.array([factor * p + g for p, g in zip(x, gradient)], x.dtype)
    with untouched(gradient, x):
        assert bits(kernels.directed(gradient, Decay(x, 0.1))) == bits(expected)


def check_directed_by_momentum(kernels, x):
    gradient, factor = x[::-1].copy(), x.dtype.type(0.9)
    pushed = np.array([factor * r + g for r, g in zip(x, gradient)], x.dtype)
    ahead = np.array([factor * p + g for p, g in zip(pushed, gradient)], x.dtype)
    for nesterov in (False, True):
        out, in_place = np.full_like(x, 9), x.copy()
        with untouched(gradient, x):
            found = kernels.directed(gradient, Momentum(x, out, 0.9, nesterov))
        kernels.directed(gradient, Momentum(in_place, in_place, 0.9, nesterov))
        assert bits(out) == bits(in_place) == bits(pushed)
        assert bits(found) == bits(ahead if nesterov else pushed)


def check_directed_by_adam(kernels, x):
    gradient, mean, square = x[::-1].copy(), x, np.abs(x[::2]).repeat(2)[: x.size].copy()
    for step in ADAM_STEPS:
        rows = [adam_entry(*row, step) for row in zip(gradient, mean, square)]
        expected = [np.array(column, x.dtype) for column in zip(*rows)]
        with np.errstate(over="ignore", invalid="ignore"):
            new = [np.full_like(x, 9) for _ in range(2)]
            with untouched(gradient, mean, square):
                out = [*new, kernels.directed(gradient, Adam(mean, square, *new, step))]
            same = [mean.copy(), square.copy()]
            in_place = [*same, kernels.directed(gradient, Adam(*same, *same, step))]
        for found, wanted in zip([*out, *in_place], [*expected, *expected]):
            assert bits(found) == bits(wanted)


def check_orthogonalized(kernels, dtype):
    """Check that the polynomial changes each singular value, and that singular vectors stay the
    same."""
    rng = np.random.default_rng(3)
    shapes = ((1, 1), (6, 6), (3, 8), (8, 3), (40, 1), (2, 5, 4))
    for shape in shapes:
        step = NewtonSchulz(shape, 3, (3.0, -3.5, 1.5), 0.25)
        for scale in (1e-30, 1.0, 1e30):  # whose squares leave the range of float32
            x = (rng.normal(size=shape) * scale).astype(dtype).reshape(-1)
            with untouched(x):
                found = kernels.orthogonalized(x, step)
            assert (found.dtype, found.shape) == (x.dtype, x.shape)
            wide = x.astype(np.float64).reshape(-1, *shape[-2:])
            left, values, right = np.linalg.svd(wide, full_matrices=False)
            values = values / (np.sqrt((values**2).sum(-1, keepdims=True)) + step.epsilon)
            for _ in range(step.steps):
                values = 3.0 * values - 3.5 * values**3 + 1.5 * values**5
            wanted = (left * values[:, None] @ right).reshape(-1)
            largest = np.abs(wanted).max()
            tolerance = 2e-5 if x.itemsize == 4 else 1e-12
            assert np.allclose(found, wanted, rtol=tolerance, atol=tolerance * largest), shape
    assert not kernels.orthogonalized(np.zeros(12, dtype), NewtonSchulz((3, 4))).any()
    for bad in (np.nan, np.inf):
        x = np.ones(24, dtype)
        x[3] = bad
        found = kernels.orthogonalized(x, NewtonSchulz((2, 3, 4)))
        assert np.isnan(found[:12]).all() and np.isfinite(found[12:]).all()


ADAM_STEPS = (
    AdamStep(0.9, 0.999, 1e-8, 1, ranks=4),
    AdamStep(0.9, 0.99, 1e-8, 7, ranks=64, scale=0.25),
    AdamStep(0.5, 0.0, 1e-3, 2, ranks=3, is_of_mean=True),
)


def adam_entry(gradient, mean, square, step):
    real = gradient.dtype.type
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        after = mean * real(step.beta1) + gradient * real(1 - step.beta1)
        present = gradient * gradient * real(1 - step.beta2)
        square = square * real(step.beta2) + present
        m, steps = (after, step.step) if step.is_of_mean else (mean, max(1, step.step - 1))
        m = m * real(1 / (1 - step.beta1**steps))
        unbias = real(1 / (1 - step.beta2**step.step))
        s = square * unbias
        own = 1 / step.ranks if step.step > 1 else 1.0
        average = s * real(own) + min(m * m, s) * real(1 - own)
        average = max(average, present * unbias * real(LEAST_PART))
        direction = (m if step.is_of_mean else gradient) / (np.sqrt(average) + real(step.epsilon))
        return after, square, (direction + average * real(0)) * real(step.scale)


ON_FINITE_DATA = (
    check_mean_and_std,
    check_tail,
    check_digit_counts,
    check_chunk_norms,
    check_take_bins,
    check_directed_by_decay,
    check_directed_by_momentum,
    check_directed_by_adam,
)
