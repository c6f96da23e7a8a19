"""What a selector is, and what it declares about itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from types import ModuleType
from typing import ClassVar, Protocol, TypeVar

import numpy as np

from ...types import Selection
from .. import reference
from ..counts import check_density, count_from_density
from ..kernels import Kernels, Moments

Self = TypeVar("Self", bound="DensitySelector")


@dataclass(frozen=True)
class Found:
    """A selection and how it was come by.

    Attributes
    ----------
    selection : the entries
    threshold : the magnitude cut that chose them, for the next step's warm start; None where there is none
    passes : compare-and-count passes over the whole vector, without the pass that copies the entries out
    is_fallback : the search did not converge and exact top-k on its candidates chose
    """

    selection: Selection
    threshold: float | None = None
    passes: int = 0
    is_fallback: bool = False


@dataclass(frozen=True)
class Context:
    """What a selector may use besides the vector.

    Attributes
    ----------
    kernels : the engine's kernels
    moments : of the vector, where the pipeline has them already
    warm : the threshold that this tensor's last step ended with
    rng : a generator private to (seed, tensor, step), for selectors that draw
    """

    kernels: Kernels | ModuleType = field(default_factory=lambda: reference)
    moments: Moments | None = None
    warm: float | None = None
    rng: np.random.Generator | None = None

    def moments_of(self, accumulated: np.ndarray) -> Moments:
        return self.moments if self.moments is not None else self.kernels.moments(accumulated)


class Selector(Protocol):
    """A rule that picks entries.  Implementations are frozen dataclasses, registered in ``SELECTORS``.

    What they declare is what the conformance suite measures:

    id : permanent name                       paper : citation key, or None
    is_exact : always the exact top-k         tolerance : declared (low, high) of count / k, or None
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]
    is_exact: ClassVar[bool]

    def find(self, accumulated: np.ndarray, context: Context) -> Found:
        """The entries to send, and how they were found."""


@dataclass(frozen=True)
class DensitySelector:
    """Base of the selectors that are told how many entries to send."""

    density: float

    paper: ClassVar[str | None] = None
    is_exact: ClassVar[bool] = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "density", check_density(self.density, f"density of {type(self).__name__}"))

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
        raise NotImplementedError

    def count(self, numel: int) -> int:
        """k: how many entries this density asks for."""
        return count_from_density(numel, self.density)

    def at_density(self: Self, density: float) -> Self:
        """The same selector at another density: what a schedule asks for at every step."""
        return self if density == self.density else dataclasses.replace(self, density=density)
