"""Detection of steps whose time has departed from that after a plan's adoption."""

from __future__ import annotations

import statistics

WINDOW = 20
"""Steps of a window, whose median time is compared."""
SETTLING = 5
"""Steps after a plan's adoption that are not timed."""
REVIEW_EVERY = 500
"""Steps from the end of one window to the end of the next."""
FACTOR = 1.5
"""Steps have departed if they take more than this factor longer or shorter than at first."""


class Departure:
    """Comparison of the median step time of later windows with that of the first window.

    All ranks call its methods at the same steps, so that their windows end together.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Start over, at the adoption of a plan."""
        self.first_s: float | None = None
        self._left = SETTLING + WINDOW
        self._times: list[float] = []

    @property
    def is_watching(self) -> bool:
        """Whether the current step belongs to a window."""
        return self._left <= WINDOW

    @property
    def is_due(self) -> bool:
        """Whether a window has ended, so that the ranks must compare their medians."""
        return self._left == 0

    @property
    def median_s(self) -> float:
        """The median time of the window's steps in seconds; 0 if all of them failed."""
        return statistics.median(self._times) if self._times else 0.0

    def begin(self, last_s: float | None) -> None:
        """Begin a step.

        Parameters
        ----------
        last_s : time of the last step in seconds; None if it failed
        """
        if self.is_watching and last_s is not None:
            self._times.append(last_s)
        self._left -= 1

    def judge(self, slowest_s: float) -> bool:
        """Return whether steps have departed, and schedule the next window.

        Parameters
        ----------
        slowest_s : median of the ended window on the slowest rank, in seconds
        """
        self._left, self._times = REVIEW_EVERY, []
        if self.first_s is None:
            self.first_s = slowest_s or None
            return False
        is_as_at_first = self.first_s / FACTOR <= slowest_s <= self.first_s * FACTOR
        return slowest_s > 0.0 and not is_as_at_first
