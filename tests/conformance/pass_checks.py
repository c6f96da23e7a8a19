"""How often a selector goes over the whole vector, counted where it cannot be hidden: in the
kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
from conformance import selector_checks
from distributions import ALL, draw

from hvd_sparse.core.kernels import reference

FREE = {"moments", "mean_and_std", "sample_magnitudes"}
"""Once each: what a selector may ask for before it searches; a sample is no pass at all."""

TAKING = {"take_at_least", "take_largest", "take_indices", "take_bins"}
COUNTING = {"count_at_least", "count_and_take", "tail", "digit_counts", "chunk_norms", "take_bins"}


class CountingKernels:
    """The reference kernels, counting how often each is called on the whole vector."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x
        self.calls: dict[str, int] = {}
        self.last = ""

    def __getattr__(self, name):
        def counted(*arguments):
            if arguments[0] is self.x:  # and not a list of candidates
                self.calls[name] = self.calls.get(name, 0) + 1
                self.last = name
            return getattr(reference, name)(*arguments)

        return counted


def check_passes_on_all(selector: Any) -> None:
    """On every distribution, from a cold start and with a threshold that may be used again."""
    for name in ALL:
        for warm in (None, 0.01, 1.0):
            check_passes(selector, draw(name, 2_000), warm)


def check_passes(selector: Any, x: np.ndarray, warm: float | None = None) -> None:
    """Every pass is one of counting, or one that took entries and threw them away."""
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
