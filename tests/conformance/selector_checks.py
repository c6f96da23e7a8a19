"""Checks that every selector must pass, according to what it declares. Numbers in brackets are
those of the invariants."""

import math
from fractions import Fraction
from functools import cache

import numpy as np
from conformance.kernel_checks import assert_takes, untouched
from distributions import ALL, SMOOTH, draw

from hvd_sparse.kernels import reference
from hvd_sparse.selectors.contract import Context
from hvd_sparse.selectors.gaussian_k import VARIANTS

DENSITIES = (0.001, 0.01, 0.1, 0.29, 1.0)
NUMELS = (0, 1, 5, 50, 1_000)
WARM = (None, 1e-300, 1e-3, 1.0, 1e6, 1e300)


def vectors(dtype, names=ALL):
    for name in names:
        for numel in NUMELS:
            yield f"{name}[{numel}]", drawn_once(name, numel, dtype).copy()


@cache
def drawn_once(name, numel, dtype):
    return draw(name, numel, dtype)


@cache
def wanted(numel, density):
    """Return k, computed with exact fractions. For example, 0.29 of 100 entries is 29, although
    0.29 * 100 in floating point is not."""
    return min(numel, max(1, math.floor(numel * Fraction(str(density)))))


class Listening(Context):
    was_asked = False

    def __getattribute__(self, name):
        if name == "warm":
            object.__setattr__(self, "was_asked", True)
        return super().__getattribute__(name)


def find(selector, x, kernels=reference, warm=None):
    return find_in(selector, x, Context(kernels, warm=warm, rng=np.random.default_rng(11)))


def find_in(selector, x, context):
    with untouched(x):
        return selector.find(x, context)


def check_found(selector, x, kernels=reference, warm=None):
    """Check form (9), count (13) and passes (18) of a selection. Return whether another threshold
    could change the result."""
    context = Listening(kernels, warm=warm, rng=np.random.default_rng(11))
    found = find_in(selector, x, context)
    indices = found.selection.indices
    assert (indices[:-1] < indices[1:]).all(), "indices are not ascending and unique"
    assert (indices >= 0).all()
    assert (indices < x.size).all()
    check_values(selector, x, found)
    if selector.is_by_magnitude:
        check_count(selector, x, found, warm)
        check_nothing_larger_is_left(x, found)
    assert found.passes <= most_passes(selector), "more passes than the limit in PASSES"
    assert found.threshold is None or found.threshold >= 0.0
    return context.was_asked


PASSES = {
    "adacomp": 1,
    "chunk_max": 1,
    "chunked": 1,
    "dgc_sampled": lambda selector: selector.max_rounds,
    "gaussian_k": lambda selector: VARIANTS[selector.variant][0],
    "ldte_bs": lambda selector: selector.max_passes,
    "radix_select": 8,
    "redsync_search": lambda selector: selector.max_passes,
    "redsync_signs": 16,
    "redsync_trimmed": lambda selector: math.ceil(1 / selector.step),
    "reused_threshold": 1,
    "sbc": 1,
    "sidco": lambda selector: max(selector.stages, 1, math.ceil(-math.log2(selector.share))),
    "topk": 16,
}
"""The largest number of passes of a selector, whatever the data; others have no limit."""


def most_passes(selector):
    limit = PASSES.get(selector.id, math.inf)
    return limit(selector) if callable(limit) else limit


def check_values(selector, x, found):
    if not selector.changes_values:
        assert_takes(found.selection, x, found.selection.indices.tolist())
        return
    values = found.selection.values
    assert values.dtype == x.dtype
    assert np.isfinite(values).all()
    assert np.array_equal(np.signbit(values), np.signbit(x[found.selection.indices]))
    assert np.unique(np.abs(values)).size <= 1, "a message of signs has more than one magnitude"


def check_count(selector, x, found, warm):
    """(13) The count is exact, or within the declared bounds, or the one of a fallback."""
    count, nonzeros = found.selection.count, int(np.count_nonzero(x))
    if not hasattr(selector, "density"):
        limit = getattr(selector, "max_density", None)
        assert count <= (nonzeros if limit is None else min(nonzeros, wanted(x.size, limit)))
        return
    k = wanted(x.size, selector.density)
    exact = min(k, nonzeros)
    if selector.is_exact or nonzeros == 0:
        assert count == exact
        return
    is_reused = warm is not None and not found.passes and found.threshold == warm
    if hasattr(selector, "tolerance"):
        low, high = (Fraction(str(bound)) * k for bound in selector.tolerance)
        low = 1 if is_reused else low
        assert count == exact if found.is_fallback else (low <= count <= high or count == exact)
    if hasattr(selector, "bounds"):
        assert 1 <= count <= Fraction(str(selector.bounds[1])) * k
        assert not found.is_fallback or count == exact
    if hasattr(selector, "cap"):
        assert 1 <= count <= selector.cap * k
        assert not found.is_fallback or count == int(selector.cap * k)


def check_nothing_larger_is_left(x, found):
    taken = np.zeros(x.size, bool)
    taken[found.selection.indices] = True
    if taken.all() or not taken.any():
        return
    magnitudes = np.abs(x)
    smallest = magnitudes[taken].min()
    assert magnitudes[~taken].max() <= smallest, (
        "an entry that was left is larger than one that was sent"
    )
    ties = np.flatnonzero(magnitudes == smallest)
    assert taken[ties].tolist() == sorted(taken[ties].tolist(), reverse=True), (
        "a tie went to the higher index"
    )


def check_everything(selector, kernels=reference):
    for dtype in ("float32", "float64"):
        for _, x in vectors(dtype):
            for warm in WARM:
                if not check_found(selector, x, kernels, warm):
                    break


def check_what_it_ignores(selector):
    """(15) The changes that the selector declares to ignore (of scale, signs or order) do not
    change its selection."""
    for what in selector.ignores:
        CHANGES[what](selector)


def check_scaling_changes_nothing(selector):
    """Check that multiplying by a power of two does not change the selection. Denormals are left
    out, because multiplying them rounds."""
    for name, x in vectors("float32", sorted(set(ALL) - {"denormals"})):
        expected = find(selector, x).selection.indices.tolist()
        for scale in (2.0**20, 2.0**-20):
            scaled = x * np.float32(scale)
            assert find(selector, scaled).selection.indices.tolist() == expected, name


def check_signs_change_nothing(selector):
    for name, x in vectors("float32"):
        expected = find(selector, x).selection.indices.tolist()
        flipped = np.where(np.arange(x.size) % 2, -x, x)
        for signed in (-x, flipped, np.abs(x), -np.abs(x)):
            assert find(selector, signed).selection.indices.tolist() == expected, name


def check_order_changes_nothing(selector):
    for name, x in vectors("float32", SMOOTH):
        distinct = x[np.unique(np.abs(x), return_index=True)[1]]
        order = np.random.default_rng(5).permutation(distinct.size)
        here = find(selector, distinct).selection.values
        there = find(selector, np.ascontiguousarray(distinct[order])).selection.values
        assert sorted(here.tolist()) == sorted(there.tolist()), name


CHANGES = {
    "order": check_order_changes_nothing,
    "scale": check_scaling_changes_nothing,
    "signs": check_signs_change_nothing,
}


def check_searches_converge(selector, passes):
    for name in SMOOTH:
        found = find(selector, draw(name, 20_000))
        assert not found.is_fallback, f"{name}: the search gave up after {found.passes} passes"
        assert found.passes <= passes, f"{name}: {found.passes} passes"


def check_selector(selector):
    check_everything(selector)
    check_what_it_ignores(selector)
    if hasattr(selector, "max_passes"):
        check_searches_converge(selector, selector.max_passes)
