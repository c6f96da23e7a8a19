"""The contract of schedules."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, TypeVar

from hvd_sparse.density_rule import Density, check_rule, number_of

Self = TypeVar("Self", bound="Schedule")
ValuedSelf = TypeVar("ValuedSelf", bound="ValuedSchedule")

LONG_RUN = 10**9
"""Number of a step after any warm-up."""

UNKNOWN_DENSITY = 0.01
"""Assumed density of methods without a density."""


class Schedule(Protocol):
    """The density of a tensor as a pure function of its completed steps.

    Schedules are frozen dataclasses, registered in ``SCHEDULES``.
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]

    def density(self, step: int) -> float:
        """Return the density, in (0, 1], of a tensor's step, the first of which is 0."""

    def at_density(self: Self, density: float) -> Self:
        """Return this schedule with another final density, in (0, 1]."""


@dataclass(frozen=True)
class ValuedSchedule:
    """Base of the schedules that have a final or a mean density.

    Parameters
    ----------
    value : this density, in (0, 1], or a rule by tensor; if it is left out of a schedule given as a
        mapping, it is the method's density
    """

    value: Density

    paper: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_rule(self.value, f"value of {type(self).__name__}"))

    @property
    def number(self) -> float:
        """The density as a number; InvalidOption if it is a rule."""
        return number_of(self.value, type(self).__name__)

    def at_density(self: ValuedSelf, density: float) -> ValuedSelf:
        return replace(self, value=density)
