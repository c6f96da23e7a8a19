"""Vectors that no random distribution gives, and a comparison of engines on them."""

import numpy as np
from distributions import draw

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.arrays import aligned_zeros
from hvd_sparse.kernels.contract import Aim
from hvd_sparse.types import Selection

SIZES = (1, 2, 12, 17, 31)
"""Lengths below one vector register of 64 bytes, and lengths above it that leave a rest of one
entry or nearly a whole register."""

THRESHOLDS = (0.0, 1e-300, 1e-45, 1e-40, 0.1, 1.0, 3.0, 1e30, 1e39, np.inf)
"""In float32, some of them become zero, subnormal or infinite."""


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
    return [np.ascontiguousarray(x, dtype) for x in made]


def random_vector(rng, dtype):
    limits = np.finfo(dtype)
    small, large = (limits.smallest_subnormal, limits.smallest_normal), limits.max
    kinds = [0, -0.0, 1, -1, *small, large, -large, 3, 0.1]
    kinds += [np.nan, np.inf, -np.inf] if rng.random() < 0.4 else [1e-30, 5e5]
    kinds += [1e-60, 1e250] if dtype == "float64" else []
    numel = int(rng.choice([0, 1, 7, 9, 15, 16, 17, 33, 100, 257, 2047, 2049, 5000]))
    x = rng.choice(rng.choice(kinds, int(rng.integers(1, len(kinds)))), numel)
    x = np.where(rng.random(numel) < 0.5, x, rng.normal(size=numel)) if rng.random() < 0.3 else x
    return np.ascontiguousarray(x, dtype)


DRAWS = 40


def long_vectors(dtype):
    numel = 10_001
    x, order = draw("laplace", numel, dtype), np.arange(numel)
    made = [draw("normal", short, dtype) for short in (15, 16, 17, 4_095, 4_097, 12_345)]
    made += [x, np.full(numel, 0.1), np.where(order % 3, 0.2, -0.1), np.round(2 * x) / 2]
    made += [np.where(order == 7, 1e30, x), np.round(5 * x) * np.finfo(dtype).smallest_subnormal]
    made += [np.where(order % 1_000, -0.0, x), np.where(order % 2, np.nan, np.round(x))]
    made += [np.where(order % 7, x, -np.inf)]
    large = draw("laplace", (1 << 22) // np.dtype(dtype).itemsize + 37, dtype)
    large[::99_991] = np.resize([np.nan, np.inf, -np.inf], large[::99_991].size)
    return [np.ascontiguousarray(x, dtype) for x in [*made, large]]


def check_beside_the_reference(kernels, dtype):
    rng = np.random.default_rng(0)
    for number in range(DRAWS):
        x = random_vector(rng, dtype)
        count = (0, 1, 2, x.size // 2, x.size, x.size + 5)[number % 6]
        ask_both(kernels, x, THRESHOLDS[number % len(THRESHOLDS)], count)
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
    taken = Selection(indices, x, 3 * x.size + 1)

    def fused(kernels, in_place):
        residual = x.copy() if in_place else x
        out = residual if in_place else aligned_zeros(x.size, x.dtype)
        taking = kernels.accumulate_and_take(
            gradient, residual, out, Aim(threshold or 1e-300, count)
        )
        return bits(x), bits(out), taking.nonfinite, entry_bits(taking.taken)

    def accumulated(kernels, in_place):
        residual = x.copy() if in_place else x
        out = residual if in_place else np.full_like(x, 9)
        moments = kernels.accumulate(gradient, residual, out)
        told = repr(moments.abs_max), moments.nonzeros, moments.is_finite
        return bits(x), bits(out), *told

    def trimmed(kernels, gives_back):
        out = np.full(taken.numel, 9, x.dtype) if gives_back else None
        kept, least = kernels.trim(taken, count, out)
        return entry_bits(kept), repr(least), None if out is None else bits(out)

    def scattered(kernels):
        out = np.full(taken.numel, 9, x.dtype)
        kernels.restore(out, taken)
        kernels.scatter_add(out, indices, x)
        added = bits(out)
        kernels.clear(out, indices)
        return added, bits(out)

    def assembled(kernels):
        out = np.full(taken.numel, 9, x.dtype)
        parts = [taken, Selection.empty(taken.numel, x.dtype), taken][: count % 4]
        kernels.assemble(out, parts, 1 / (1 + count % 3))
        return bits(out)

    def counted(kernels):
        number, few = kernels.count_and_take(x, threshold or 1e-300, count)
        return number, entry_bits(few)

    def few(kernels):
        number, largest = kernels.take_at_most(x, threshold, count)
        return number, entry_bits(largest)

    return {
        "moments": lambda kernels: repr(kernels.moments(x).abs_max)
        + str(kernels.moments(x).nonzeros),
        "count_at_least": lambda kernels: kernels.count_at_least(x, threshold),
        "take_at_least": lambda kernels: entry_bits(kernels.take_at_least(x, threshold)),
        "take_largest": lambda kernels: entry_bits(kernels.take_largest(x, count)),
        "count_and_take": counted,
        "take_at_most": few,
        "accumulate": lambda kernels: (accumulated(kernels, False), accumulated(kernels, True)),
        "accumulate_and_take": lambda kernels: (fused(kernels, False), fused(kernels, True)),
        "trim": lambda kernels: (trimmed(kernels, False), trimmed(kernels, True)),
        "restore, clear and scatter_add": scattered,
        "assemble": assembled,
    }


def bits(x):
    """Return a vector's bytes, with equal bits for every NaN, because processors differ in them."""
    return np.where(np.isnan(x), x.dtype.type(np.nan), x).tobytes()


def entry_bits(selection):
    if selection is None:
        return None
    indices, values = selection.indices, selection.values
    return indices.dtype, indices.tobytes(), values.dtype, values.tobytes(), selection.numel
