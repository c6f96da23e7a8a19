"""Contract of the selectors, which choose the entries to send, and their declared properties."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.density_rule import Density, check_rule, number_of
from hvd_sparse.errors import InvalidOption
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.selectors._aim import Cut, Miss, aim_below, steer
from hvd_sparse.selectors._search import Band
from hvd_sparse.types import Memo, Selection, TensorSpec

Self = TypeVar("Self", bound="Selector")
DensitySelf = TypeVar("DensitySelf", bound="DensitySelector")


class Found(NamedTuple):
    """The selected entries, and how they were found.

    threshold : the magnitude that the selected entries reach, for the next step's warm start
    passes : number of passes over the whole vector, without those for moments, mean and standard
        deviation, and without the pass that copies the entries
    is_fallback : the search did not converge, and exact top-k selected among its candidates
    memo : further state for this tensor's next step, JSON-serializable
    is_one_pass : the pass that added the gradient collected all entries that were needed
    is_taken : that pass has already cleared the selected entries in the vector
    """

    selection: Selection
    threshold: float | None = None
    passes: int = 0
    is_fallback: bool = False
    memo: Memo = None
    is_one_pass: bool = False
    is_taken: bool = False


class Context(NamedTuple):
    """The inputs of a selector besides the vector.

    moments : moments of the vector, if already computed
    warm, memo : the tensor's last threshold, and the memo of ``Found`` from its last step
    rng : a generator for (seed, tensor, step), or a function that makes one
    gradient : this step's part of the accumulated vector, for selectors with ``needs_gradient``
    miss : the aim of this step, if its candidates could not be used
    reached : number of candidates, if the kernels use their list in the vector's place
    kept : for ``Selector.cut``, the vector without the candidates; None if the candidates are from
        several vectors
    """

    kernels: Kernels = reference
    moments: Moments | None = None
    warm: float | None = None
    memo: Memo = None
    rng: np.random.Generator | Callable[[], np.random.Generator] | None = None
    gradient: np.ndarray | None = None
    spec: TensorSpec | None = None
    miss: Miss | None = None
    reached: int | None = None
    kept: np.ndarray | None = None

    def moments_of(self, accumulated: np.ndarray) -> Moments:
        return self.moments if self.moments is not None else self.kernels.moments(accumulated)

    @property
    def age(self) -> int:
        return int(self.memo) if isinstance(self.memo, (int, float)) else 0

    def margin_for(self, needed: int) -> Memo:
        """Return the next memo of a selector whose memo is the margin of its aim, if ``needed``
        entries should reach the aim."""
        if self.miss is not None:
            return steer(self.memo, self.miss.count, needed)
        return self.memo if self.reached is None else steer(self.memo, self.reached, needed)

    def reused(self, accumulated: np.ndarray, steps: int, most: int) -> tuple[Found | None, int]:
        """Return the entries that reach the last threshold, and the number of passes so far. The
        entries are None if the threshold is ``steps`` steps old, or if none or more than ``most``
        reach it."""
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
class Selector:
    """Base class of selectors: frozen dataclasses, registered in ``SELECTORS``.

    The conformance suite measures every property that a selector declares.

    Attributes
    ----------
    paper : citation key, or None
    is_exact : the selected indices are always those of the exact top-k
    is_by_magnitude : every sent entry is at least as large as every unsent one; if they are equal,
        the entry with the lower index is sent first
    ignores : which of "order", "scale" and "signs" of the vector's entries may change without a
        change of the selected entries
    pass_limit : upper bound of ``Found.passes`` for any data
    needs_rng : the selector draws at random, and has an option ``seed``
    needs_gradient : the selector compares this step's gradient with the residual, so the memory
        must provide the gradient
    is_unbiased : the expectation of the sent vector is the accumulated vector, so no residual is
        needed
    has_shared_indices : all ranks select the same indices
    sums_statistics : the selector selects by statistics (``measure``, ``find_by``). If they are
        summed over the ranks first, all ranks select the same entries
    sends_votes : the selector sends +1 and -1, whose majority a memory may count
    changes_values : the selector sends other values than the accumulated ones; memories keep the
        difference
    asks_kernels : ``find`` reads the vector's entries only through kernels, so that a list of its
        largest entries can take its place (``kernels.listed``)
    needs_host : the reason why gradients on an accelerator are copied to the host; empty if the
        selector works on the accelerator
    """

    id: ClassVar[str]
    paper: ClassVar[str | None] = None
    is_exact: ClassVar[bool] = False
    is_by_magnitude: ClassVar[bool] = True
    ignores: ClassVar[frozenset[str]] = frozenset({"order", "scale", "signs"})
    needs_rng: ClassVar[bool] = False
    needs_gradient: ClassVar[bool] = False
    is_unbiased: ClassVar[bool] = False
    sums_statistics: ClassVar[bool] = False
    sends_votes: ClassVar[bool] = False
    asks_kernels: ClassVar[bool] = False
    needs_host: ClassVar[str] = "is not known to work on devices"

    @property
    def changes_values(self) -> bool:
        return False

    @property
    def has_shared_indices(self) -> bool:
        return False

    @property
    def pass_limit(self) -> int:
        return 0

    def select(
        self,
        accumulated: np.ndarray,
        *,
        kernels: Kernels = reference,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """Return the entries to send of a tensor that had no step before.

        Parameters
        ----------
        accumulated : float32 or float64 [numel], C-contiguous, read-only: residual + gradient
        kernels : of the engine; plain numpy by default
        rng : generator for selectors that draw

        Returns
        -------
        Selection : indices uint32 [count], ascending, and values of the accumulated's dtype

        Raises
        ------
        InvalidOption : the selector draws at random and was given no ``rng``

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
        """Return the entries to send and how they were found. ``accumulated`` is read-only."""
        raise NotImplementedError

    def aim(self, numel: int, warm: float | None, memo: Memo) -> Aim | None:
        """Return the aim of the pass that adds the gradient, or None if this pass shall take no
        entries. ``warm`` and ``memo`` are as in ``Context``."""
        return None

    def band(self, numel: int) -> Band | None:
        """Return which numbers of candidates ``cut`` accepts, and how many it keeps if there are
        more. None if ``cut`` is overridden, because it needs more than the number of candidates."""
        return None

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        """Return how many of the entries that reached the aim, ``taken``, are selected; None if a
        search is needed."""
        band, found = self.band(taken.numel), taken.indices.size
        if band is None or found < band.least:
            return None
        memo = steer(context.memo, found, band.least)
        # Inside the band all candidates are selected, because cutting them would cost time.
        return Cut(found if found <= band.most else band.wanted, memo)

    def as_sent(self, kept: Selection) -> Selection:
        """Return the entries that ``cut`` chose, with the values to send."""
        return kept

    def measures(self, numel: int) -> int:
        """Return the number of statistics that ``measure`` returns for a vector."""
        raise NotImplementedError

    def measure(self, accumulated: np.ndarray, kernels: Kernels) -> np.ndarray:
        """Return the statistics by which ``find_by`` selects, in the vector's dtype."""
        raise NotImplementedError

    def find_by(self, statistics: np.ndarray, accumulated: np.ndarray, kernels: Kernels) -> Found:
        """Return the entries to send, selected by their statistics alone."""
        raise NotImplementedError

    def at_density(self: Self, density: float) -> Self:
        """Return this selector for another density, or the selector itself if it has no density."""
        return self


@dataclass(frozen=True)
class DensitySelector(Selector):
    """Base class of selectors with a given density.

    Parameters
    ----------
    density : float in (0, 1]; or a rule that gives every tensor its density, which ``at_density``
        replaces by a number
    """

    density: Density

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "density", check_rule(self.density, f"density of {type(self).__name__}")
        )

    @cached_property  # needed several times a step, and constant
    def share(self) -> float:
        """The density as a number. Raises InvalidOption if the density is a rule."""
        return number_of(self.density, type(self).__name__)

    def count(self, numel: int) -> int:
        """Return k, the number of entries of a tensor that is given by the density."""
        return count_from_density(numel, self.share)

    def at_density(self: DensitySelf, density: float) -> DensitySelf:
        return self if density == self.density else dataclasses.replace(self, density=density)


class ExactSelector(DensitySelector):
    """Base class of selectors of exactly the k largest entries.

    If k entries or more reach an aim, the k largest are among them. Therefore in nearly every step
    no pass is needed besides the one that adds the gradient.
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
    """Return the smallest magnitude of a selection; None if it is empty."""
    return float(np.abs(selection.values).min()) if selection.count else None


def take_bounded(
    accumulated: np.ndarray,
    threshold: float,
    most: int,
    moments: Moments,
    context: Context,
    passes: int,
) -> Found:
    """Take the entries that reach an estimated threshold: at least the largest entry, and at most
    the ``most`` largest entries."""
    if not moments.nonzeros:
        return Found(Selection.empty(accumulated.size, accumulated.dtype), threshold, passes)
    threshold = max(0.0, min(threshold, moments.abs_max))
    count, selection = context.kernels.take_at_most(accumulated, threshold, most)
    return Found(selection, threshold, passes, is_fallback=count > most)
