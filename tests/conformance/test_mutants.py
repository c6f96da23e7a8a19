"""The checks object to kernels and selectors that are broken on purpose; one that lets them pass is no check."""

from __future__ import annotations

import math
from collections import ChainMap
from types import SimpleNamespace

import numpy as np
import pytest
from conformance.kernel_checks import check_kernels
from conformance.selector_checks import check_selector

from hvd_sparse.core import reference, search
from hvd_sparse.core.kernels import Moments
from hvd_sparse.core.selectors._base import Found
from hvd_sparse.core.selectors.ldte_bs import LdteBs
from hvd_sparse.core.selectors.topk import TopK
from hvd_sparse.types import Selection


def engine(**broken):
    """The reference kernels, some of them replaced."""
    return SimpleNamespace(**ChainMap(broken, vars(reference)))


def picked(x, indices):
    return Selection(np.asarray(indices, np.uint32), x[indices], x.size)


def without_last(take):
    def broken(x, amount):
        whole = take(x, amount)
        return Selection(whole.indices[:-1], whole.values[:-1], x.size)

    return broken


def largest(x, count, order):
    """The largest entries by another order than the contract's."""
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
    return Moments(float(np.abs(x).cumsum(dtype=x.dtype)[-1]) if x.size else 0.0, right.abs_max, right.nonzeros, x.size)


BROKEN_KERNELS = {
    "take > for >=": engine(take_at_least=lambda x, t: picked(x, np.flatnonzero(np.abs(x) > x.dtype.type(t)))),
    "count > for >=": engine(count_at_least=lambda x, t: int((np.abs(x) > x.dtype.type(t)).sum())),
    "threshold not rounded": engine(count_at_least=lambda x, t: int((np.abs(x) >= np.float64(t)).sum())),
    "last entry dropped": engine(take_at_least=without_last(reference.take_at_least)),
    "one too few": engine(take_largest=without_last(reference.take_largest)),
    "compare without abs": engine(count_at_least=lambda x, t: int((x >= x.dtype.type(t)).sum())),
    "maximum without abs": engine(moments=max_without_abs),
    "float32 sum": engine(moments=narrow_moments),
    "largest without abs": engine(take_largest=lambda x, k: largest(x, k, lambda v: np.argsort(-v, kind="stable"))),
    "unsorted": engine(take_largest=by_size_unsorted),
    "ties to the higher index": engine(
        take_largest=lambda x, k: largest(x, k, lambda v: np.lexsort((-np.arange(v.size), -np.abs(v))))
    ),
    "first k by position": engine(take_largest=lambda x, k: largest(x, k, lambda v: np.arange(v.size))),
    "writes to its input": engine(take_at_least=abs_in_place),
    "takes zeros": engine(take_at_least=lambda x, t: picked(x, np.flatnonzero(np.abs(x) >= x.dtype.type(t)))),
    "takes NaN": engine(
        take_at_least=lambda x, t: picked(x, np.flatnonzero(~(np.abs(x) < x.dtype.type(t)) & (x != 0)))
    ),
    "int64 indices": engine(
        take_at_least=lambda x, t: Selection(np.flatnonzero(np.abs(x) >= max(t, 1e-300)), x[np.abs(x) >= t], x.size)
    ),
    "residual subtracted": engine(compensate=lambda g, r, out: np.subtract(g, r, out=out)),
    "gradient overwritten": engine(compensate=lambda g, r, out: np.add(g, r, out=g)),
    "residual not cleared": engine(clear=lambda r, i: None),
    "cleared to -0.0": engine(clear=lambda r, i: r.__setitem__(i, -0.0)),
    "scatter overwrites": engine(scatter_add=lambda out, i, v: out.__setitem__(i, v)),
}


@pytest.mark.parametrize("name", BROKEN_KERNELS)
def test_a_broken_kernel_is_caught(name):
    with pytest.raises(AssertionError):
        check_kernels(BROKEN_KERNELS[name])


class Selecting(TopK):
    """A top-k whose selection is spoilt afterwards."""

    spoil = staticmethod(lambda selection, x: selection)

    def find(self, accumulated, context):
        return Found(self.spoil(super().find(accumulated, context).selection, accumulated))


def spoilt(spoil):
    return type("Spoilt", (Selecting,), {"spoil": staticmethod(spoil)})(0.1)


class Estimating(LdteBs):
    """LDTE-BS whose search is believed even where it did not converge."""

    def find(self, accumulated, context):
        moments = context.moments_of(accumulated)
        threshold = moments.abs_mean * math.log(10) if moments.numel else 0.0
        return Found(context.kernels.take_at_least(accumulated, threshold), threshold, 1)


def from_behind(selection, x):
    mirrored = reference.take_largest(x[::-1], selection.count).indices.astype(int)
    return picked(x, np.sort(x.size - 1 - mirrored))


BROKEN_SELECTORS = {
    "last entry dropped": spoilt(lambda s, x: Selection(s.indices[:-1], s.values[:-1], s.numel)),
    "unsorted": spoilt(lambda s, x: Selection(s.indices[::-1], s.values[::-1], s.numel)),
    "magnitudes for values": spoilt(lambda s, x: Selection(s.indices, np.abs(s.values), s.numel)),
    "values as float16": spoilt(lambda s, x: Selection(s.indices, s.values.astype(np.float16), s.numel)),
    "always the first k": spoilt(lambda s, x: picked(x, np.flatnonzero(x)[: s.count])),
    "ties to the higher index": spoilt(from_behind),
    "writes to its input": spoilt(lambda s, x: x.sort() or s),
    "estimate not corrected": Estimating(0.1),
}


@pytest.mark.parametrize("name", BROKEN_SELECTORS)
def test_a_broken_selector_is_caught(name):
    with pytest.raises(AssertionError):
        check_selector(BROKEN_SELECTORS[name])


@pytest.mark.parametrize("name", search.STEPS)
def test_a_bracket_that_is_not_narrowed_is_caught(name, monkeypatch):
    monkeypatch.setattr(search.Bracket, "narrow", lambda *_: None)
    with pytest.raises(AssertionError, match="gave up"):
        check_selector(LdteBs(0.1, search=name))


def test_a_search_that_forgets_its_limit_is_caught(monkeypatch):
    monkeypatch.setattr("hvd_sparse.core.selectors.ldte_bs.search_threshold", endless_search)
    with pytest.raises(AssertionError, match="limit"):
        check_selector(LdteBs(0.1, search="bisection", max_passes=3))


def endless_search(x, first, band, moments, kernels, name, max_passes, right=search.search_threshold):
    return right(x, first, band, moments, kernels, name, 60)


@pytest.mark.parametrize(
    ("check", "part"),
    [
        (check_kernels, reference),
        (check_selector, TopK(0.1)),
        (check_selector, LdteBs(0.1)),
    ],
)
def test_the_parts_that_the_mutants_are_made_of_pass(check, part):
    """Or every mutant would be caught by the same fault."""
    check(part)
