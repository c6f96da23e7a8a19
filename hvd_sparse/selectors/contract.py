"""The contract of selectors, which choose the entries to send, and base classes for them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np

from hvd_sparse.checks import Options, count_from_density, option
from hvd_sparse.density_rule import Density, check_rule, number_of
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.selectors._aim import Band, Cut, Miss, aim_below, steer
from hvd_sparse.types import Memo, Selection, TensorSpec


class Found(NamedTuple):
    """A selection, and how it was made.

    threshold : threshold near which the tensor's next step collects entries or starts its search;
        None if that step has to start without a threshold
    passes : number of passes of the selector over the whole vector, without those that compute
        moments, mean or standard deviation, or that copy the selected entries
    is_fallback : exact top-k made the selection, because a search did not converge or too many
        entries reached the threshold
    memo : further state for this tensor's next step; JSON-serializable
    is_one_pass : the pass that added the gradient collected all needed entries (``Selector.aim``)
    is_taken : the selected entries have already been set to +0.0 in the vector
    """

    selection: Selection
    threshold: float | None = None
    passes: int = 0
    is_fallback: bool = False
    memo: Memo = None
    is_one_pass: bool = False
    is_taken: bool = False


class Context(NamedTuple):
    """The inputs of a selector besides the accumulated vector.

    moments : statistics of the vector; None if they have not been computed yet
    warm, memo : ``threshold`` and ``memo`` of the tensor's previous ``Found``
    rng : random number generator for this seed, tensor and step, or a function that creates it
    gradient : the vector that was added to the residual: the gradient, or a memory's direction
    miss : set if the pass that added the gradient looked for entries above a threshold, but the
        selector could not select among them (``selectors._aim.Miss``); otherwise None
    kept : for ``Selector.cut``, the vector with +0.0 in place of the collected entries; None if
        these come from several vectors
    """

    kernels: Kernels = reference
    moments: Moments | None = None
    warm: float | None = None
    memo: Memo = None
    rng: np.random.Generator | Callable[[], np.random.Generator] | None = None
    gradient: np.ndarray | None = None
    spec: TensorSpec | None = None
    miss: Miss | None = None
    kept: np.ndarray | None = None

    def moments_of(self, accumulated: np.ndarray) -> Moments:
        return self.moments if self.moments is not None else self.kernels.moments(accumulated)

    @property
    def age(self) -> int:
        return int(self.memo) if isinstance(self.memo, (int, float)) else 0

    def margin_for(self, needed: int) -> Memo:
        """Return the memo for the next step, for selectors whose memo is a margin. Entries are
        collected if they reach a value that is lower by this fraction than the previous threshold.
        ``needed`` is the number of collected entries that would have been enough in this step."""
        return self.memo if self.miss is None else steer(self.memo, self.miss.count, needed)

    def reused(self, accumulated: np.ndarray, steps: int, most: int) -> tuple[Found | None, int]:
        """Try to select by the previous step's threshold. Return the entries that reach it, and the
        number of passes. The entries are None if the threshold is missing, 0, or was used for
        ``steps`` steps. They are also None if no entry or more than ``most`` entries reach it."""
        if not self.warm or self.age >= steps:
            return None, 0
        if self.miss is not None and self.miss.is_sure:
            return None, 1  # the pass that added the gradient has counted them
        threshold = min(self.warm, float(np.finfo(accumulated.dtype).max))
        count, selection = self.kernels.take_at_most(accumulated, threshold, most)
        return Found(selection, threshold) if 0 < count <= most else None, 1

    def random(self) -> np.random.Generator:
        if self.rng is None:
            raise InvalidOption(
                "this selector draws at random: give it rng=numpy.random.default_rng(seed)"
            )
        return self.rng() if callable(self.rng) else self.rng


@dataclass(frozen=True)
class Selector(Options):
    """Base class of selectors: frozen dataclasses, registered in ``SELECTORS``.

    The conformance suite tests whether a selector has the properties that it declares.

    Attributes
    ----------
    is_exact : the selected entries are always those of exact top-k
    is_by_magnitude : no unsent entry is larger in magnitude than a sent one. Of equal magnitudes,
        the lower index is sent first
    ignores : the changes of a vector that leave the selected entries the same: "order" (its entries
        are permuted), "scale" (it is multiplied by a number) and "signs" (entries change their
        signs)
    needs_rng : the selector draws random numbers, and has an option ``seed``
    needs_gradient : the selector needs the vector that was added to the residual
    is_unbiased : the sent vector's expectation is the accumulated vector: no residual is needed
    has_shared_indices : all ranks select the same indices
    sums_statistics : the selector computes statistics (``measure``) and selects by them
        (``find_by``). If an exchange sums the statistics over the ranks before ``find_by``, all
        ranks select the same entries
    sends_votes : the selector sends +1 and -1, which a memory may count as votes
    changes_values : the sent values differ from the accumulated ones; memories keep the difference
    needs_host : the reason why gradients on an accelerator must be copied to the host, as the end
        of a sentence that begins with the selector's name; empty if the copy is not needed
    """

    id: ClassVar[str]
    is_exact: ClassVar[bool] = False
    is_by_magnitude: ClassVar[bool] = True
    ignores: ClassVar[frozenset[str]] = frozenset({"order", "scale", "signs"})
    needs_rng: ClassVar[bool] = False
    needs_gradient: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = False
    has_shared_indices: ClassVar[bool] = False
    sums_statistics: ClassVar[bool] = False
    sends_votes: ClassVar[bool] = False
    changes_values: ClassVar[bool] = False
    needs_host: ClassVar[str] = "is not known to work on devices"

    def select(
        self,
        accumulated: np.ndarray,
        *,
        kernels: Kernels = reference,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """Return the entries to send. This works as in a tensor's first step: no threshold or memo
        of an earlier step is used.

        Parameters
        ----------
        accumulated : residual + gradient: float32 or float64 [numel], C-contiguous, read-only
        kernels : kernels of an engine; plain numpy by default
        rng : random number generator, for selectors with ``needs_rng``

        Returns
        -------
        Selection : indices, uint32 [count], ascending; and values in the dtype of ``accumulated``

        Raises
        ------
        InvalidOption : the selector draws random numbers, and ``rng`` is missing

        Examples
        --------
        >>> import numpy as np
        >>> from hvd_sparse.registry import SELECTORS
        >>> accumulated = np.array([0.1, -3.0, 0.2, 2.0], np.float32)
        >>> SELECTORS.create("topk", density=0.5).select(accumulated).indices
        array([1, 3], dtype=uint32)
        """
        return self.find(accumulated, Context(kernels=kernels, rng=rng)).selection

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        """Return the entries to send, and how they were found. ``accumulated`` is read-only."""
        raise NotImplementedError

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        """Return a threshold and a capacity for the pass that adds a gradient of ``numel`` entries.
        The pass also collects the entries that reach the threshold, unless these are more than the
        capacity. Return None to collect no entries. ``warm`` and ``memo`` are the threshold and the
        memo of the tensor's previous ``Found``."""
        return None

    def band(self, numel: int) -> Band | None:
        """Return the range of counts (band) by which ``cut`` decides. If the number of collected
        entries is in the band, all are selected; if it is above, the ``Band.wanted`` largest are.
        None if nothing is collected, or if ``cut`` does not decide by this number alone."""
        return None

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        """Return how many of ``taken`` are selected, or None if the selector must search the whole
        vector. ``taken`` are the entries that the pass that added the gradient collected."""
        band, found = self.band(taken.numel), taken.indices.size
        if band is None or found < band.least:
            return None
        memo = steer(context.memo, found, band.least)
        # Inside the band all candidates are selected, because cutting them would cost time.
        return Cut(found if found <= band.most else band.wanted, memo)

    def as_sent(self, kept: Selection) -> Selection:
        """Return the entries ``kept``, which ``cut`` selected, with the values to send for them:
        the entries' own values, unless the selector changes values (``changes_values``)."""
        return kept

    def measures(self, numel: int) -> int:
        """Return how many statistics ``measure`` computes from a vector of ``numel`` entries."""
        raise NotImplementedError

    def measure(self, accumulated: np.ndarray, kernels: Kernels) -> np.ndarray:
        """Return the statistics by which ``find_by`` selects, in the dtype of ``accumulated``."""
        raise NotImplementedError

    def find_by(self, statistics: np.ndarray, accumulated: np.ndarray, kernels: Kernels) -> Found:
        """Return the entries to send. Their indices depend only on the statistics; their values are
        read from ``accumulated``."""
        raise NotImplementedError

    def at_density(self, density: float) -> Selector:
        """Return a copy with ``density``. A selector without this option returns itself."""
        return self


@dataclass(frozen=True)
class DensitySelector(Selector):
    """Base class of selectors with an option for the density.

    Parameters
    ----------
    density : float in (0, 1]; or a rule that gives every tensor its own density, which
        ``at_density`` replaces by a number
    """

    density: Density = option(check_rule)

    @cached_property  # needed several times a step, and constant
    def share(self) -> float:
        """The density as a number. Raises InvalidOption if the density is a rule."""
        return number_of(self.density, type(self).__name__)

    def count(self, numel: int) -> int:
        """Return k, the number of entries to send of a tensor of ``numel`` entries."""
        return count_from_density(numel, self.share)

    def at_density(self, density: float) -> DensitySelector:
        return self if density == self.density else dataclasses.replace(self, density=density)


class ExactSelector(DensitySelector):
    """Base class of selectors that select exactly the k largest entries.

    The pass that adds the gradient also collects the entries that reach a threshold (``aim``). If
    these are at least k, the k largest entries are among them, and no other pass is needed. This is
    so in nearly every step.
    """

    is_exact: ClassVar[bool] = True

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        return aim_below(warm, memo, self.count(numel), numel)

    def band(self, numel: int) -> Band | None:
        count = self.count(numel)
        return Band(count, count, count)


def largest_of(candidates: Selection, count: int, kernels: Kernels) -> Selection:
    return kernels.trim(candidates, count, None)[0] if 0 < count < candidates.count else candidates


def least_of(selection: Selection) -> float | None:
    return float(np.abs(selection.values).min()) if selection.count else None


def take_bounded(
    accumulated: np.ndarray,
    threshold: float,
    most: float,
    moments: Moments,
    context: Context,
    passes: int,
) -> Found:
    """Return the entries that reach an estimated threshold: if there are none, the largest entry,
    and if there are more than ``most``, the ``most`` largest. ``passes`` is the number of passes
    that led to the estimate."""
    if not moments.nonzeros:
        return Found(Selection.empty(accumulated.size, accumulated.dtype), threshold, passes)
    threshold, most = max(0.0, min(threshold, moments.abs_max)), int(min(accumulated.size, most))
    count, selection = context.kernels.take_at_most(accumulated, threshold, most)
    return Found(selection, threshold, passes, is_fallback=count > most)
