"""Contract of the schedules."""

from __future__ import annotations

from typing import ClassVar, Protocol, TypeVar

Self = TypeVar("Self", bound="Schedule")

LONG_RUN = 10**9
"""A step after every warm-up."""

UNKNOWN_DENSITY = 0.01
"""A guess at what methods send that are told no density."""


class Schedule(Protocol):
    """A density as a pure function of a tensor's completed steps.

    Schedules are frozen dataclasses, registered in ``SCHEDULES``.
    """

    id: ClassVar[str]
    paper: ClassVar[str | None]

    def density(self, step: int) -> float:
        """Return the density of a tensor's step, in (0, 1].

        Parameters
        ----------
        step : completed steps of the tensor, from 0
        """

    def at_density(self: Self, density: float) -> Self:
        """Return this schedule for a tensor with a density of its own, at which it ends.

        Parameters
        ----------
        density : of the tensor behind any warm-up, in (0, 1]
        """
