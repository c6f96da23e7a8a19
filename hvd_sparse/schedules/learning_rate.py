from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.checks import check_whole, option
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import ValuedSchedule
from hvd_sparse.types import Pace

LEAST = 1e-9
"""Density at a learning rate of 0. With memories that compute an optimizer's updates, no entries
are sent then (see ``DirectionState``); with other memories, selectors send one entry."""


@SCHEDULES.register("learning_rate")
@dataclass(frozen=True)
class LearningRate(ValuedSchedule):
    """Send more entries while the optimizer's learning rate is high, and fewer while it is low.

        density of a step = min(1, value * rate / mean rate of the run)

    The rate is that of the tensor's parameter group in this step, so ``optimizer=`` is required.

    Parameters
    ----------
    value : mean density of the run, in (0, 1], or a rule that gives every tensor its mean density.
        A ``schedule`` mapping without "value" uses the method's density
    steps : how often the run calls the learning-rate scheduler: the number of steps, or of epochs
        if a PyTorch scheduler is stepped once per epoch.  The mean rate is computed with a copy of
        the scheduler (``scheduler=``), or from the Keras schedule.  None if the mean is not known
        before the run

    Notes
    -----
    Without a scheduler, or with one that follows a metric, the mean is not known before the run.
    The density of a step is then value * rate / first rate, at most ``value``. So if the rate falls
    below the first rate, the run sends fewer bytes than at a constant density of ``value``.

    ``RankMismatch`` is raised if ranks have different rates.

    This rule comes from no paper.
    """

    steps: int | None = option(check_whole, None, least=1)

    def density(self, step: int) -> float:
        """Return the mean density: a step's density depends on the rate, not on the step."""
        return self.number

    def density_at(self, pace: Pace) -> float:
        """Return the density, in (0, 1], of a step. ``pace`` has the step's learning rate, and the
        rate with which it is compared: the mean or the first rate."""
        share = pace.share
        if not share > 0:  # or if it is NaN; the checksums that ranks compare include the rate
            return LEAST
        return min(1.0, max(LEAST, self.density(0) * share))
