"""What a selector is, and what it declares about itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Callable, ClassVar, TypeVar

import numpy as np

from hvd_sparse.checks import check_density, count_from_density
from hvd_sparse.core.kernels import reference
from hvd_sparse.core.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.errors import InvalidOption
from hvd_sparse.selectors._aim import Cut, Miss
from hvd_sparse.types import Selection, TensorSpec

Self = TypeVar("Self", bound="DensitySelector")


@dataclass(frozen=True)
class Found:
    """A selection and how it was come by.

    Attributes
    ----------
    selection : the entries
    threshold : the magnitude cut that chose them, for the next step's warm start; None where there
        is none
    passes : passes over the whole vector, without those for moments, mean and standard deviation
        and the one that copies the entries out
    is_fallback : the search did not converge and exact top-k on its candidates chose
    is_one_pass : the pass that added the gradient caught all that was needed
    memo : what else this tensor's next step is told, JSON-able
    """

    selection: Selection
    threshold: float | None = None
    passes: int = 0
    is_fallback: bool = False
    memo: Any = None
    is_one_pass: bool = False


@dataclass(frozen=True)
class Context:
    """What a selector may use besides the vector.

    Attributes
    ----------
    kernels : the engine's kernels
    moments : of the vector, where the pipeline has them already
    warm : the threshold that this tensor's last step ended with
    memo : what else its last step left
    rng : a generator private to (seed, tensor, step), or what makes one, for selectors that draw
    gradient : this step's part of the accumulated vector, for selectors that tell it from the
        residual
    spec : the tensor's name, shape and dtype
    miss : the aim of this step, where it did not do
    """

    kernels: Kernels | ModuleType = field(default_factory=lambda: reference)
    moments: Moments | None = None
    warm: float | None = None
    memo: Any = None
    rng: np.random.Generator | Callable[[], np.random.Generator] | None = None
    gradient: np.ndarray | None = None
    spec: TensorSpec | None = None
    miss: Miss | None = None

    def moments_of(self, accumulated: np.ndarray) -> Moments:
        return self.moments if self.moments is not None else self.kernels.moments(accumulated)

    def random(self) -> np.random.Generator:
        """The generator; InvalidOption where nobody gave one."""
        if self.rng is None:
            raise InvalidOption(
                "this selector draws at random: give it rng=numpy.random.default_rng(seed)"
            )
        return self.rng() if callable(self.rng) else self.rng


@dataclass(frozen=True)
class Selector:
    """A rule that picks entries.  Selectors are frozen dataclasses, registered in ``SELECTORS``.

    What they declare is what the conformance suite measures.

    Attributes
    ----------
    paper : citation key, or None
    is_exact : the indices are always those of the exact top-k
    is_by_magnitude : what is sent is at least as large as what stays, the lower index first where
        they are equal
    ignores : what of "order", "scale" and "signs" may change in the vector without another entry
        being taken
    pass_limit : passes that it never exceeds, whatever the data: the proof that it ends
    needs_rng : draws at random; has a ``seed``
    needs_gradient : tells what this step added from the residual, so the memory must say what that
        was
    is_unbiased : the expectation of what is sent is what was accumulated, so no residual is needed
    has_shared_indices : all ranks select the same indices
    sums_statistics : chooses by numbers that may be summed over the ranks first (``measure``,
        ``find_by``), so that all ranks choose alike
    changes_values : sends other values than the accumulated ones; memories keep the difference
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

    @property
    def changes_values(self) -> bool:
        """Whether other values are sent than the accumulated ones."""
        return False

    @property
    def has_shared_indices(self) -> bool:
        """Whether all ranks select the same indices."""
        return False

    @property
    def pass_limit(self) -> int:
        """How many passes it takes at most."""
        return 0

    def select(
        self,
        accumulated: np.ndarray,
        *,
        kernels: Kernels | ModuleType = reference,
        rng: np.random.Generator | None = None,
    ) -> Selection:
        """The entries to send, from a cold start.

        Parameters
        ----------
        accumulated : float32 or float64 [numel], C-contiguous, read-only: gradient + residual
        kernels : the engine; plain numpy unless told otherwise
        rng : for selectors that draw

        Returns
        -------
        Selection : indices uint32 [count] ascending, values of the accumulated's dtype
        """
        return self.find(accumulated, Context(kernels=kernels, rng=rng)).selection

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        """The entries to send, and how they were found."""
        raise NotImplementedError

    def aim(self, numel: int, warm: float | None, memo: Any) -> Aim | None:
        """What the pass that adds the gradient may take along, from what the last step left; None
        for nothing."""
        return None

    def cut(self, taken: Selection, aim: Aim, context: Context) -> Cut | None:
        """Which of the entries that reached the aim are selected; None where the whole vector must
        be asked."""
        return None

    def measures(self, numel: int) -> int:
        """How many statistics a vector has; for selectors that declare ``sums_statistics``."""
        raise NotImplementedError

    def measure(self, accumulated: np.ndarray, kernels: Kernels | ModuleType) -> np.ndarray:
        """The statistics that ``find_by`` chooses by, of the vector's dtype."""
        raise NotImplementedError

    def find_by(
        self, statistics: np.ndarray, accumulated: np.ndarray, kernels: Kernels | ModuleType
    ) -> Found:
        """The entries to send, chosen by statistics alone."""
        raise NotImplementedError

    def at_density(self: Any, density: float) -> Any:
        """The same selector at the density that a schedule asks for; itself, for those that are
        told no density."""
        return self


@dataclass(frozen=True)
class DensitySelector(Selector):
    """Base of the selectors that are told how many entries to send."""

    density: float

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "density", check_density(self.density, f"density of {type(self).__name__}")
        )

    def count(self, numel: int) -> int:
        """k: how many entries this density asks for."""
        return count_from_density(numel, self.density)

    def at_density(self: Self, density: float) -> Self:
        return self if density == self.density else dataclasses.replace(self, density=density)
