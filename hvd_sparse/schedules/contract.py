"""The contract of schedules, which give the density of every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from hvd_sparse.density_rule import Density, check_rule, number_of

Self = TypeVar("Self", bound="Schedule")

LONG_RUN = 10**9
"""Number of a step that is after any warm-up."""

UNKNOWN_DENSITY = 0.01
"""Density that is assumed for methods without a density."""


class Schedule:
    """Base class of schedules: frozen dataclasses, registered in ``SCHEDULES``. A tensor's density
    is a function of the number of its completed steps."""

    id: ClassVar[str]
    paper: ClassVar[str | None] = None

    def density(self, step: int) -> float:
        """Return the density, in (0, 1], of a tensor's step; the first step is 0."""
        raise NotImplementedError

    def at_density(self: Self, density: float) -> Self:
        """Return this schedule with another final density, in (0, 1]."""
        raise NotImplementedError


@dataclass(frozen=True)
class ValuedSchedule(Schedule):
    """Base class of the schedules that have a final or a mean density.

    Parameters
    ----------
    value : the final or mean density, in (0, 1], or a rule that gives every tensor its density. If
        it is left out of a schedule given as a mapping, it is the method's density
    """

    value: Density

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_rule(self.value, f"value of {type(self).__name__}"))

    @property
    def number(self) -> float:
        """The density as a number. Raises InvalidOption if it is a rule."""
        return number_of(self.value, type(self).__name__)

    def at_density(self: Self, density: float) -> Self:
        return replace(self, value=density)  # type: ignore[type-var, misc]
