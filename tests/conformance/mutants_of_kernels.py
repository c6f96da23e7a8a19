"""Kernels with deliberate faults."""

import numpy as np

from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.kernels.optimizers import Adam, Momentum
from hvd_sparse.types import Selection


def engine(**broken):
    return type("Broken", (Kernels,), {n: staticmethod(own) for n, own in broken.items()})()


def of_a_step(**other):
    def direct(gradient, direction):
        if isinstance(direction, Adam):
            direction = direction._replace(step=direction.step._replace(**other))
        return reference.directed(gradient, direction)

    return engine(directed=direct)


def adam_without_overflow(gradient, direction):
    found = reference.directed(gradient, direction)
    return np.nan_to_num(found, nan=0.0) if isinstance(direction, Adam) else found


def adam_of_old_moments(gradient, direction):
    if isinstance(direction, Adam):
        direction = direction._replace(out_square=direction.out_square.copy())
    return reference.directed(gradient, direction)


def keeps_the_old_velocity(gradient, direction):
    if isinstance(direction, Momentum):
        direction = direction._replace(out_velocity=direction.out_velocity.copy())
    return reference.directed(gradient, direction)


def knows_no_nesterov(gradient, direction):
    if isinstance(direction, Momentum):
        direction = direction._replace(is_nesterov=False)
    return reference.directed(gradient, direction)


def momentum_after_the_gradient(gradient, direction):
    if not isinstance(direction, Momentum):
        return reference.directed(gradient, direction)
    old, new, momentum, _ = direction
    return np.multiply(old + gradient, gradient.dtype.type(momentum), out=new)


def accumulates_the_gradient(gradient, residual, out, aim, direction=None):
    if direction is not None:
        reference.directed(gradient, direction)
    return reference.accumulate_and_take(gradient, residual, out, aim)


def picked(x, indices):
    return Selection(np.asarray(indices, np.uint32), x[indices], x.size)


def without_last(take):
    def broken(x, amount):
        whole = take(x, amount)
        return Selection(whole.indices[:-1], whole.values[:-1], x.size)

    return broken


def largest(x, count, order):
    takeable = np.flatnonzero(np.nan_to_num(x) != 0)
    return picked(x, np.sort(takeable[order(x[takeable])[: max(0, count)]]))


def by_size_unsorted(x, count):
    whole = reference.take_largest(x, count)
    order = np.argsort(-np.abs(whole.values), kind="stable")
    return Selection(whole.indices[order], whole.values[order], x.size)


def abs_in_place(x, threshold):
    selection = reference.take_at_least(x, threshold)
    np.abs(x, out=x)
    return selection


def max_without_abs(x):
    right = reference.moments(x)
    return Moments(right.abs_sum, float(x.max()) if x.size else 0.0, right.nonzeros, right.numel)


def narrow_moments(x):
    right = reference.moments(x)
    return Moments(
        float(np.abs(x).cumsum(dtype=x.dtype)[-1]) if x.size else 0.0,
        right.abs_max,
        right.nonzeros,
        x.size,
    )


def bins_with_zeros(x, gradient, length):
    maxima, _ = reference.take_bins(x, gradient, length)
    reaches = np.abs(x + gradient) >= np.repeat(maxima, length)[: x.size]
    return maxima, picked(x, np.flatnonzero(reaches))


def taking(change):
    def broken(gradient, residual, out, aim, *direction):
        result = reference.accumulate_and_take(gradient, residual, out, aim, *direction)
        change(gradient, out, aim, result)
        return result

    return broken


def gives_up_silently(gradient, out, aim, result):
    if result.taken is None:
        reference.clear(out, reference.take_at_least(out, aim.threshold).indices)


def spreads_nan(gradient, out, aim, result):
    np.copyto(out, np.where(np.isfinite(gradient), out, gradient))


def leaves_what_it_takes(gradient, out, aim, result):
    if result.taken is not None:
        reference.restore(out, result.taken)


def takes_beyond_its_capacity(gradient, residual, out, aim, *direction):
    return reference.accumulate_and_take(
        gradient, residual, out, Aim(aim.threshold, aim.capacity + 1), *direction
    )


def spoils_the_residual(gradient, residual, out):
    moments = reference.accumulate(gradient, residual, out)
    np.copyto(out, np.where(np.isfinite(gradient), out, gradient))
    return moments


def trims_to_the_last_ties(taken, count, out):
    mirrored = Selection(taken.indices, taken.values[::-1], taken.numel)
    kept, _ = reference.trim(mirrored, count, None)
    positions = taken.count - 1 - np.searchsorted(taken.indices, kept.indices)[::-1]
    return reference.trim(
        Selection(taken.indices[positions], taken.values[positions], taken.numel), count, out
    )


def trims_to_what_nobody_wrote(taken, count, out):
    kept, threshold = reference.trim(taken, count, out)
    room = Selection(np.zeros(count, np.uint32), np.zeros(count, taken.values.dtype), taken.numel)
    room.indices[: kept.count], room.values[: kept.count] = kept.indices, kept.values
    return room, threshold


def keeps_zeros(taken, count, out):
    positions = np.flatnonzero(taken.values != 0)
    return reference.trim(
        Selection(taken.indices[positions], taken.values[positions], taken.numel), count, out
    )


def writes_its_tail_first(gradient, residual, out, aim, *direction):
    whole = gradient.size - gradient.size % (64 // gradient.itemsize)
    total = (residual + gradient)[whole:]
    result = reference.accumulate_and_take(gradient, residual, out, aim, *direction)
    if out is residual:
        out[whole:] = np.where(np.isfinite(total), out[whole:], total)
    return result


def takes_zeros_below_all_numbers(gradient, residual, out, aim, *direction):
    result = reference.accumulate_and_take(gradient, residual, out, aim, *direction)
    if out.dtype.type(aim.threshold) == 0 and result.taken is not None:
        zeros = np.flatnonzero((residual + gradient == 0) if out is not residual else out == 0)
        return result._replace(taken=picked(out, zeros))
    return result


def shuts_out_infinity(x, threshold, capacity):
    finite = np.where(np.isfinite(x), x, 0)
    return reference.count_and_take(finite, threshold, capacity)


def first_of_too_many(x, threshold, most):
    taken = reference.take_at_least(x, threshold)
    return taken.count, picked(x, taken.indices[:most])


BROKEN_KERNELS = {
    "at most: the first instead of the largest": engine(take_at_most=first_of_too_many),
    "at most: says what it took": engine(
        take_at_most=lambda x, t, most: (
            min(most, reference.take_at_most(x, t, most)[0]),
            reference.take_at_most(x, t, most)[1],
        )
    ),
    "trim: what nobody wrote where there are few": engine(trim=trims_to_what_nobody_wrote),
    "trim: zeros are not given back": engine(trim=keeps_zeros),
    "fused: the tail is written before it is looked at": engine(
        accumulate_and_take=writes_its_tail_first
    ),
    "fused: takes zeros where the threshold rounds to zero": engine(
        accumulate_and_take=takes_zeros_below_all_numbers
    ),
    "counts no infinity": engine(count_and_take=shuts_out_infinity),
    "fused: entries lost beyond the capacity": engine(
        accumulate_and_take=taking(gives_up_silently)
    ),
    "fused: NaN reaches the residual": engine(accumulate_and_take=taking(spreads_nan)),
    "fused: what is taken also stays": engine(accumulate_and_take=taking(leaves_what_it_takes)),
    "fused: one more than its capacity": engine(accumulate_and_take=takes_beyond_its_capacity),
    "sum: NaN reaches the residual": engine(accumulate=spoils_the_residual),
    "trim: surplus lost": engine(trim=lambda taken, count, out: reference.trim(taken, count, None)),
    "trim: ties to the higher index": engine(trim=trims_to_the_last_ties),
    "trim: largest value for the smallest": engine(
        trim=lambda taken, count, out: (
            reference.trim(taken, count, out)[0],
            float(np.abs(taken.values).max(initial=0)),
        )
    ),
    "restore: adds": engine(
        restore=lambda out, s: reference.scatter_add(out, s.indices, 1 + s.values)
    ),
    "take > for >=": engine(
        take_at_least=lambda x, t: picked(x, np.flatnonzero(np.abs(x) > x.dtype.type(t)))
    ),
    "count > for >=": engine(count_at_least=lambda x, t: int((np.abs(x) > x.dtype.type(t)).sum())),
    "threshold not rounded": engine(
        count_at_least=lambda x, t: int((np.abs(x) >= np.float64(t)).sum())
    ),
    "last entry dropped": engine(take_at_least=without_last(reference.take_at_least)),
    "one too few": engine(take_largest=without_last(reference.take_largest)),
    "compare without abs": engine(count_at_least=lambda x, t: int((x >= x.dtype.type(t)).sum())),
    "maximum without abs": engine(moments=max_without_abs),
    "float32 sum": engine(moments=narrow_moments),
    "largest without abs": engine(
        take_largest=lambda x, k: largest(x, k, lambda v: np.argsort(-v, kind="stable"))
    ),
    "unsorted": engine(take_largest=by_size_unsorted),
    "ties to the higher index": engine(
        take_largest=lambda x, k: largest(
            x, k, lambda v: np.lexsort((-np.arange(v.size), -np.abs(v)))
        )
    ),
    "first k by position": engine(
        take_largest=lambda x, k: largest(x, k, lambda v: np.arange(v.size))
    ),
    "writes to its input": engine(take_at_least=abs_in_place),
    "takes zeros": engine(
        take_at_least=lambda x, t: picked(x, np.flatnonzero(np.abs(x) >= x.dtype.type(t)))
    ),
    "takes NaN": engine(
        take_at_least=lambda x, t: picked(
            x, np.flatnonzero(~(np.abs(x) < x.dtype.type(t)) & (x != 0))
        )
    ),
    "int64 indices": engine(
        take_at_least=lambda x, t: Selection(
            np.flatnonzero(np.abs(x) >= max(t, 1e-300)), x[np.abs(x) >= t], x.size
        )
    ),
    "residual not cleared": engine(clear=lambda r, i: None),
    "cleared to -0.0": engine(clear=lambda r, i: r.__setitem__(i, -0.0)),
    "scatter overwrites": engine(scatter_add=lambda out, i, v: out.__setitem__(i, v)),
    "counts no more than it may take": engine(
        count_and_take=lambda x, t, capacity: (
            min(capacity + 1, reference.count_at_least(x, t)),
            None,
        )
        if reference.count_at_least(x, t) > capacity
        else reference.count_and_take(x, t, capacity)
    ),
    "takes more than it may": engine(
        count_and_take=lambda x, t, capacity: reference.count_and_take(x, t, capacity + 1)
    ),
    "assemble adds to what was there": engine(
        assemble=lambda out, parts, factor=1.0: [
            reference.scatter_add(out, p.indices, p.values * out.dtype.type(factor)) for p in parts
        ]
    ),
    "assemble multiplies the sum": engine(
        assemble=lambda out, parts, factor=1.0: [
            reference.assemble(out, parts),
            np.multiply(out, out.dtype.type(factor), out=out),
        ]
    ),
    "assemble in another order": engine(
        assemble=lambda out, parts, factor=1.0: reference.assemble(out, parts[::-1], factor)
    ),
    "tail > for >=": engine(
        tail=lambda x, t: reference.tail(x, float(np.nextafter(x.dtype.type(t), np.inf)))
    ),
    "bins take zeros": engine(take_bins=bins_with_zeros),
    "bytes of the signed entries": engine(
        digit_counts=lambda x, s, p: reference.digit_counts(np.maximum(x, 0), s, p)
    ),
    "chunks without their magnitudes": engine(
        chunk_norms=lambda x, n: abs(reference.chunk_norms(np.maximum(x, 0), n))
    ),
    "the second moment of one rank": of_a_step(ranks=1),
    "Adam without the scale": of_a_step(scale=1),
    "Adam's biased start": of_a_step(step=999),
    "the gradient where the mean is wanted": of_a_step(is_of_mean=False),
    "an infinite square hidden": engine(directed=adam_without_overflow),
    "moments of the step before": engine(directed=adam_of_old_moments),
    "a push that keeps the old velocity": engine(directed=keeps_the_old_velocity),
    "a push that knows no Nesterov": engine(directed=knows_no_nesterov),
    "a fused push that accumulates the gradient": engine(
        accumulate_and_take=accumulates_the_gradient
    ),
    "momentum after the gradient": engine(directed=momentum_after_the_gradient),
}
