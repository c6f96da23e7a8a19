"""Checks of how often a selector reads the whole vector, counted in the kernels."""

from collections import Counter

import numpy as np
from conformance import selector_checks
from conformance.changes import Wrapped
from distributions import ALL, draw

from hvd_sparse.kernels import reference

FREE = {"moments", "mean_and_std"}
"""Kernels that a selector may call once each before its search."""

TAKING = {"take_at_least", "take_at_most", "take_largest", "take_bins"}
COUNTING = {"count_and_take", "tail", "digit_counts", "chunk_norms", "take_bins"}


class CountingKernels(Wrapped):
    """The reference kernels. ``asked`` lists the calls that got a whole vector."""

    def __init__(self, numel):
        super().__init__(reference, self._count)
        self.asked, self._numel = [], numel

    def _count(self, name, kernel, arguments):
        if np.size(arguments[0]) == self._numel:  # or a side of it; not a list of candidates
            self.asked.append(name)
        return kernel(*arguments)


def check_passes_on_all(selector):
    for name in ALL:
        for warm in (None, 0.01, 1.0):
            check_passes(selector, draw(name, 2_000), warm)


FEW = 4
"""Largest number of passes of a search if no threshold selects the requested number."""


def check_few_passes_where_no_threshold_is(selector):
    numel = 20_000
    spiked = draw("laplace", numel)
    spiked[numel // 2] = 1e30
    two_values = np.where(np.arange(numel) < 300, 0.1, 0.2).astype(np.float32)
    for x in (np.full(numel, 0.1, np.float32), two_values, spiked):
        for warm in (None, 0.05):
            kernels = CountingKernels(x.size)
            found = selector_checks.find(selector, x, kernels, warm)
            assert found.passes <= FEW, (
                f"{found.passes} passes over values of which no threshold takes so many"
            )
            assert "take_at_least" not in kernels.asked, (
                "all that reach a threshold are listed, which may be everything"
            )


def check_passes(selector, x, warm=None):
    kernels = CountingKernels(x.size)
    found = selector_checks.find(selector, x, kernels, warm)
    calls = Counter(kernels.asked)
    assert set(calls) <= FREE | TAKING | COUNTING, f"passes that nobody counts: {calls}"
    assert all(calls[name] <= 1 for name in FREE), f"more than one pass for moments: {calls}"
    counting = sum(calls[name] for name in COUNTING)
    discarded = sum(calls[name] for name in TAKING) - bool(TAKING & set(kernels.asked[-1:]))
    assert found.passes == counting + discarded, (
        f"passes differ from the calls: {found.passes}, {calls}"
    )
