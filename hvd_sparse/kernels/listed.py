"""Kernels that read a list of a vector's largest entries instead of the vector, where possible."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hvd_sparse.kernels.contract import Aim, Brought, Kernels
from hvd_sparse.types import Selection

Kernel = Callable[..., object]


class ListedKernels:
    """An engine's kernels for one vector, from which all entries that reach the aim's threshold
    were taken. ``taken`` lists these entries, and the vector has +0.0 in their place. If the list
    determines the result of ``count_to`` or ``take_at_most``, these read only the list. Otherwise
    the entries are first written back (``is_whole`` is then True), and the engine's kernel reads
    the vector. ``brought`` has statistics of the whole vector that the pass has computed."""

    def __init__(
        self, kernels: Kernels, vector: np.ndarray, taken: Selection, aim: Aim, brought: Brought
    ) -> None:
        self._kernels, self._vector, self.taken, self._brought = kernels, vector, taken, brought
        self._least = self._rounded(aim.threshold)
        self.is_whole = False

    def __getattr__(self, name: str) -> Kernel:
        own: Kernel = getattr(self._kernels, name)
        known = getattr(self._brought, name, None)

        def kernel(*values: object) -> object:
            if known is not None and values[0] is self._vector and values[1:] in ((), (0,)):
                return known
            if any(value is self._vector for value in values):
                self.make_whole()
            return own(*values)

        return kernel

    def make_whole(self) -> None:
        if not self.is_whole:
            self._kernels.restore(self._vector, self.taken)
            self.is_whole = True

    def tells(self, x: np.ndarray, threshold: float) -> bool:
        """Return whether the list has all entries of x that reach this threshold."""
        cut = self._rounded(threshold)
        return x is self._vector and bool(cut > 0) and bool(cut >= self._least)

    def _rounded(self, threshold: float) -> np.floating:
        with np.errstate(over="ignore"):
            rounded: np.floating = self._vector.dtype.type(threshold)
        return rounded

    def count_to(self, x: np.ndarray, threshold: float, most: int) -> int:
        if self.tells(x, threshold):
            return self._kernels.count_at_least(self.taken.values, threshold)
        if x is self._vector:
            if self.taken.count > most:
                return self.taken.count  # the list's entries reach this lower threshold, too
            self.make_whole()
        return self._kernels.count_at_least(x, threshold)

    def take_at_most(self, x: np.ndarray, threshold: float, most: int) -> tuple[int, Selection]:
        taken = self.taken
        if self.tells(x, threshold):
            kept = self._kernels.take_at_least(taken.values, threshold)
            taken = Selection(taken.indices[kept.indices], kept.values, x.size)
        elif x is not self._vector:
            return self._kernels.take_at_most(x, threshold, most)
        elif taken.count <= most:
            self.make_whole()
            return self._kernels.take_at_most(x, threshold, most)
        if taken.count <= most:
            return taken.count, taken
        # The ``most`` largest entries are in the list.
        return taken.count, self._kernels.trim(taken, most, None)[0]


def count_to(x: np.ndarray, threshold: float, most: int, kernels: Kernels) -> int:
    """Return how many magnitudes reach a threshold; any number above ``most`` if more do."""
    if isinstance(kernels, ListedKernels):
        return kernels.count_to(x, threshold, most)
    return kernels.count_at_least(x, threshold)
