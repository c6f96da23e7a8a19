"""The contract of schedules."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

Self = TypeVar("Self", bound="Schedule")

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
        """Return the density of a step, in (0, 1].

        Parameters
        ----------
        step : number of completed steps of the tensor, from 0
        """

    def at_density(self: Self, density: float) -> Self:
        """Return this schedule with another final density.

        Parameters
        ----------
        density : the density after any warm-up, in (0, 1]
        """
