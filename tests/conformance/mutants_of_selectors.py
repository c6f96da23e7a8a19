"""Selectors with deliberate faults."""

import math

import numpy as np
from conformance.mutants_of_kernels import picked

from hvd_sparse.kernels import reference
from hvd_sparse.selectors import _search as search
from hvd_sparse.selectors.contract import Found
from hvd_sparse.selectors.dgc_sampled import DgcSampled
from hvd_sparse.selectors.ldte_bs import LdteBs
from hvd_sparse.selectors.radix_select import RadixSelect
from hvd_sparse.selectors.redsync_search import RedsyncSearch
from hvd_sparse.selectors.redsync_trimmed import RedsyncTrimmed
from hvd_sparse.selectors.topk import TopK
from hvd_sparse.types import Selection


class Selecting(TopK):
    spoil = staticmethod(lambda selection, x: selection)

    def find(self, accumulated, context):
        return Found(self.spoil(super().find(accumulated, context).selection, accumulated))


def spoilt(spoil):
    return type("Spoilt", (Selecting,), {"spoil": staticmethod(spoil)})(0.1)


class Estimating(LdteBs):
    """LDTE-BS that uses the threshold of its search even if the search has not converged."""

    def find(self, accumulated, context):
        moments = context.moments_of(accumulated)
        threshold = moments.abs_mean * math.log(10) if moments.numel else 0.0
        return Found(context.kernels.take_at_least(accumulated, threshold), threshold, 1)


def from_behind(selection, x):
    mirrored = reference.take_largest(x[::-1], selection.count).indices.astype(int)
    return picked(x, np.sort(x.size - 1 - mirrored))


class Unrepaired(DgcSampled):
    """DGC that uses the threshold of its sample without a correction."""

    def find(self, accumulated, context):
        threshold = min(
            self._sampled_threshold(accumulated, context), context.moments_of(accumulated).abs_max
        )
        return Found(context.kernels.take_at_least(accumulated, threshold), threshold)


class Untrimmed(RedsyncTrimmed):
    """RedSync that sends all entries above its threshold, as a widely copied implementation
    does."""

    def find(self, accumulated, context):
        wanted = self.count(accumulated.size)
        coarse, passes = self._coarse_cut(accumulated, wanted, context)
        return Found(context.kernels.take_at_least(accumulated, coarse), coarse, passes)


class Uncut(RadixSelect):
    def find(self, accumulated, context):
        found = super().find(accumulated, context)
        return Found(
            context.kernels.take_at_least(accumulated, found.threshold or 0.0),
            found.threshold,
            found.passes,
        )


class Unlimited(RedsyncSearch):
    def find(self, accumulated, context):
        if not context.warm:
            return super().find(accumulated, context)
        threshold = min(context.warm, context.moments_of(accumulated).abs_max)
        return Found(context.kernels.take_at_least(accumulated, threshold), context.warm)


class Recounting(LdteBs):
    def find(self, accumulated, context):
        context.kernels.count_at_least(accumulated, 1.0)
        return super().find(accumulated, context)


class Remeasuring(TopK):
    def find(self, accumulated, context):
        context.kernels.moments(accumulated)
        context.kernels.moments(accumulated)
        return super().find(accumulated, context)


class Retaking(TopK):
    def find(self, accumulated, context):
        context.kernels.take_at_least(accumulated, 1.0)
        return super().find(accumulated, context)


BROKEN_SELECTORS = {
    "last entry dropped": spoilt(lambda s, x: Selection(s.indices[:-1], s.values[:-1], s.numel)),
    "unsorted": spoilt(lambda s, x: Selection(s.indices[::-1], s.values[::-1], s.numel)),
    "magnitudes for values": spoilt(lambda s, x: Selection(s.indices, np.abs(s.values), s.numel)),
    "values as float16": spoilt(
        lambda s, x: Selection(s.indices, s.values.astype(np.float16), s.numel)
    ),
    "always the first k": spoilt(lambda s, x: picked(x, np.flatnonzero(x)[: s.count])),
    "ties to the higher index": spoilt(from_behind),
    "writes to its input": spoilt(lambda s, x: x.sort() or s),
    "estimate not corrected": Estimating(0.1),
    "sampled threshold without repair": Unrepaired(0.1),
    "redsync trimmed without exact step": Untrimmed(0.1),
    "radix select without the cut at ties": Uncut(0.1),
    "a reused threshold without a limit": Unlimited(0.1),
}

RESTLESS = {
    "an extra counting pass": Recounting(0.1),
    "a second pass for the moments": Remeasuring(0.1),
    "a pass that takes entries and throws them away": Retaking(0.1),
}


def endless_search(
    x, first, band, moments, kernels, name, max_passes, known, right=search.search_threshold
):
    return right(x, first, band, moments, kernels, name, 60, known)
