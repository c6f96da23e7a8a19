"""What a schedule is."""

from __future__ import annotations

from typing import ClassVar, Protocol


class Schedule(Protocol):
    """Density as a pure function of a tensor's completed steps.  Frozen dataclasses in
    ``SCHEDULES``."""

    id: ClassVar[str]
    paper: ClassVar[str | None]

    def density(self, step: int) -> float:
        """The density of a tensor's step, counted from 0."""
