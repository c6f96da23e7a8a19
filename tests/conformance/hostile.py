"""Vectors that no random distribution gives, and a comparison of engines on them."""

import numpy as np
from distributions import draw

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim, Moments
from hvd_sparse.types import Selection

SIZES = (1, 2, 12, 17, 31)
"""Lengths below one vector register of 64 bytes, and lengths above it that leave a rest of one
entry or nearly a whole register."""


def with_last(numel, value):
    x = np.arange(1.0, numel + 1)
    x[-1] = value
    return x


def sums_that_cancelled(numel):
    x = np.where(np.arange(numel) % 3, 0.0, -0.0)
    x[0], x[-1] = 5.0, 3.0
    return x


def apart(numel, dtype):
    small, large = (1e-30, 1e34) if np.dtype(dtype) == np.float32 else (1e-60, 1e250)
    return np.where(np.arange(numel) % 2, large, -small)


def ends_at_most(numel, dtype):
    x = np.ones(numel)
    x[[0, -1]] = np.finfo(dtype).max
    return x


def vectors(dtype):
    tiny = float(np.finfo(dtype).smallest_subnormal)
    made = [np.empty(0)]
    for numel in SIZES:
        made += [with_last(numel, bad) for bad in (np.nan, np.inf, -np.inf)]
        made += [with_last(numel, np.nan)[::-1], sums_that_cancelled(numel), np.full(numel, -0.0)]
        made += [tiny * (np.arange(numel) % 3 - 1), apart(numel, dtype), ends_at_most(numel, dtype)]
    made = [np.ascontiguousarray(x, dtype) for x in made]
    for x in made:
        x.flags.writeable = False  # as TensorFlow's gradients
    return made


def long_vectors(dtype):
    numel = 10_001
    x, order = draw("laplace", numel, dtype), np.arange(numel)
    made = [draw("normal", short, dtype) for short in (15, 16, 17, 4_095, 4_097, 12_345)]
    made += [x, np.full(numel, 0.1), np.where(order % 3, 0.2, -0.1), np.round(2 * x) / 2]
    made += [np.where(order == 7, 1e30, x), np.round(5 * x) * np.finfo(dtype).smallest_subnormal]
    made += [np.where(order % 1_000, -0.0, x), np.where(order % 2, np.nan, np.round(x))]
    made += [np.where(order % 7, x, -np.inf)]
    large = draw("laplace", (1 << 18) // np.dtype(dtype).itemsize + 37, dtype)
    large[::99_991] = np.resize([np.nan, np.inf, -np.inf], large[::99_991].size)
    return [np.ascontiguousarray(x, dtype) for x in [*made, large]]


def check_beside_the_reference(kernels, dtype):
    for number, x in enumerate(long_vectors(dtype)):
        ask_both(kernels, x, 4.0, x.size)
        ask_both(kernels, x, 0.1, (7, x.size // 100, x.size // 2, x.size - 1)[number % 4])


def ask_both(kernels, x, threshold, count):
    gradient, indices = np.roll(x, 3), np.arange(1, 3 * x.size, 3, dtype=np.uint32)
    gradient.flags.writeable = indices.flags.writeable = x.flags.writeable
    asked = _questions(x, gradient, threshold, count, indices)
    with np.errstate(over="ignore", invalid="ignore"):
        for name, ask in asked.items():
            assert ask(kernels) == ask(reference), (
                f"{name} differs: numel {x.size}, threshold {threshold}, count {count}"
            )


def _questions(x, gradient, threshold, count, indices):
    taken, aim = Selection(indices, x, 3 * x.size + 1), Aim(threshold or 1e-300, count)
    parts = [taken, Selection.empty(taken.numel, x.dtype), taken][: count % 4]

    def added(kernels, name, *aim):
        kernel, out, residual = getattr(kernels, name), nines(x.size, x.dtype), x.copy()
        answers = (
            told(kernel(gradient, x, out, *aim)),
            told(kernel(gradient, residual, residual, *aim)),
        )
        return answers, bits(x), bits(out), bits(residual)

    def trimmed(kernels):
        out = nines(taken.numel, x.dtype)
        return (
            told(kernels.trim(taken, count, out)),
            told(kernels.trim(taken, count, None)),
            bits(out),
        )

    def written(kernels, name, *given):
        out = nines(taken.numel, x.dtype)
        getattr(kernels, name)(out, *given)
        return bits(out)

    return {
        "moments": lambda kernels: told(kernels.moments(x)),
        "take_at_least": lambda kernels: told(kernels.take_at_least(x, threshold)),
        "take_largest": lambda kernels: told(kernels.take_largest(x, count)),
        "count_and_take": lambda kernels: told(kernels.count_and_take(x, *aim)),
        "take_at_most": lambda kernels: told(kernels.take_at_most(x, threshold, count)),
        "accumulate": lambda kernels: added(kernels, "accumulate"),
        "accumulate_and_take": lambda kernels: added(kernels, "accumulate_and_take", aim),
        "trim": trimmed,
        "assemble": lambda kernels: written(kernels, "assemble", parts, 1 / (1 + count % 3)),
    }


def nines(numel, dtype):
    """Return memory with what was there before."""
    out = aligned_zeros(numel, dtype)
    out += out.dtype.type(9)
    return out


def told(answer):
    """Return of a kernel's answer what is the same with every engine: all but a sum of many."""
    if isinstance(answer, Moments):
        return repr(answer.abs_max), answer.nonzeros, answer.is_finite
    if isinstance(answer, Selection):
        return entry_bits(answer)
    return list(map(told, answer)) if isinstance(answer, tuple) else answer


def bits(x):
    """Return a vector's bytes, with equal bits for every NaN, because processors differ in them."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x).tobytes()


def entry_bits(selection):
    if selection is None:
        return None
    indices, values = selection.indices, selection.values
    return indices.dtype, indices.tobytes(), values.dtype, values.tobytes(), selection.numel
