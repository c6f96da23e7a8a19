"""Checks of how often a selector reads the whole vector, counted in the kernels."""

import numpy as np
from conformance import selector_checks
from distributions import ALL, draw

from hvd_sparse.kernels import reference

FREE = {"moments", "mean_and_std"}
"""Kernels that a selector may call once each before its search."""

TAKING = {"take_at_least", "take_at_most", "take_largest", "take_bins"}
COUNTING = {"count_at_least", "count_and_take", "tail", "digit_counts", "chunk_norms", "take_bins"}


class CountingKernels:
    """The reference kernels, which also count their calls with a whole vector."""

    def __init__(self, x):
        self.x = x
        self.calls = {}
        self.last = ""

    def __getattr__(self, name):
        def counted(*arguments):
            if np.size(arguments[0]) == self.x.size:  # or a side of it; not a list of candidates
                self.calls[name] = self.calls.get(name, 0) + 1
                self.last = name
            return getattr(reference, name)(*arguments)

        return counted


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
            kernels = CountingKernels(x)
            found = selector_checks.find(selector, x, kernels, warm)
            assert found.passes <= FEW, (
                f"{found.passes} passes over values of which no threshold takes so many"
            )
            assert "take_at_least" not in kernels.calls, (
                "all that reach a threshold are listed, which may be everything"
            )


def check_passes(selector, x, warm=None):
    kernels = CountingKernels(x)
    found = selector_checks.find(selector, x, kernels, warm)
    calls = kernels.calls
    assert set(calls) <= FREE | TAKING | COUNTING, f"passes that nobody counts: {calls}"
    assert all(calls.get(name, 0) <= 1 for name in FREE), f"more than one pass for moments: {calls}"
    counting = sum(calls.get(name, 0) for name in COUNTING)
    discarded = sum(calls.get(name, 0) for name in TAKING) - (kernels.last in TAKING)
    assert found.passes == counting + discarded, (
        f"passes differ from the calls: {found.passes}, {calls}"
    )
