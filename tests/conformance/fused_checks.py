"""Checks of the fused pass and its lists against results that are computed entry by entry."""

import math

import numpy as np
from conformance import hostile
from conformance.directed_checks import (
    check_large_directions,
    check_take_by_adam,
    check_take_by_decay,
    check_take_by_momentum,
)
from conformance.hostile import bits
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
from conformance.statistics_checks import ON_FINITE_DATA, check_orthogonalized

from hvd_sparse.kernels.contract import Aim
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
        if not threshold > 0:
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
                check_taking(taking, total, None if len(reach) > capacity else reach)
                assert bits(out) == bits(rest), "what stays is not all that was not taken"


def check_taking(taking, total, reach):
    assert taking.nonfinite == sum(not math.isfinite(v) for v in total.tolist())
    if reach is None:
        assert taking.taken is None
    else:
        assert_takes(taking.taken, total, reach)


def check_trim(kernels, x):
    numel = 3 * x.size + 1
    taken = Selection((3 * np.arange(x.size) + 1).astype(np.uint32), x.copy(), numel)
    takeable = [i for i, v in enumerate(x.tolist()) if v == v and v != 0]
    by_size = sorted(takeable, key=lambda i: (-abs(float(x[i])), i))
    for count in {
        0,
        1,
        2,
        len(takeable) // 3,
        len(takeable) - 1,
        len(takeable),
        x.size,
        x.size + 3,
    } - {-1}:
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
