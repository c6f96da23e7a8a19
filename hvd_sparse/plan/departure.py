"""Departure of a run's steps from what they took with the plan that was made for them."""

from __future__ import annotations

import statistics

WINDOW = 20
"""Steps whose median is taken."""
SETTLING = 5
"""Steps behind a plan's adoption that do not count."""
REVIEW_EVERY = 500
"""Steps from one window's end to the next's."""
FACTOR = 1.5
"""A step departs where it takes so many times as long as at first, or as many times less."""


class Departure:
    """The median seconds of steps, in a window at first and in later ones beside it.

    All ranks call all of it at the same steps, so that they are due together.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Begin anew, at the adoption of a plan."""
        self.first_s: float | None = None
        self._left = SETTLING + WINDOW
        self._times: list[float] = []

    @property
    def is_watching(self) -> bool:
        """Tell whether the step that is under way belongs to a window."""
        return self._left <= WINDOW

    @property
    def is_due(self) -> bool:
        """Tell whether a window has ended: all ranks come together."""
        return self._left == 0

    @property
    def median_s(self) -> float:
        """Return the median of the window's steps; 0 where none ended well."""
        return statistics.median(self._times) if self._times else 0.0

    def begin(self, last_s: float | None) -> None:
        """Begin a step.

        Parameters
        ----------
        last_s : seconds of the last one; None for one that failed
        """
        if self.is_watching and last_s is not None:
            self._times.append(last_s)
        self._left -= 1

    def judge(self, slowest_s: float) -> bool:
        """Begin the way to the next window, and tell whether steps have departed.

        Parameters
        ----------
        slowest_s : median of the window that has ended, on the slowest rank
        """
        self._left, self._times = REVIEW_EVERY, []
        if self.first_s is None:
            self.first_s = slowest_s or None
            return False
        is_as_at_first = self.first_s / FACTOR <= slowest_s <= self.first_s * FACTOR
        return slowest_s > 0.0 and not is_as_at_first
