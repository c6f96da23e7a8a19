from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.checks import check_whole
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import ValuedSchedule
from hvd_sparse.types import Pace

LEAST = 1e-9
"""Density at a learning rate of 0. Selectors then select one entry, and memories that apply the
optimizer's momentum send none."""


@SCHEDULES.register("learning_rate")
@dataclass(frozen=True)
class LearningRate(ValuedSchedule):
    """Send more entries while the optimizer's learning rate is high, and fewer while it is low.

        density of a step = min(1, value * rate / mean rate of the run)

    The rate is that of the tensor's parameter group at the step, so ``optimizer=`` is required.

    Parameters
    ----------
    value : mean density of the run, in (0, 1], or a rule that gives every tensor its mean density.
        If it is left out of a schedule given as a mapping, it is the method's density
    steps : number of calls of the learning-rate scheduler in the run: steps, or epochs if a PyTorch
        scheduler is stepped once per epoch.  The mean rate is computed with a copy of the scheduler
        (``scheduler=``) or from the Keras schedule.  None if the mean is not known before the run

    Notes
    -----
    If the mean is not known before the run, for example without a scheduler or with one that
    follows a metric, the density is value * rate / first rate, at most ``value``.  The run then
    sends fewer bytes than at a density of ``value``.

    If ranks have different rates, ``RankMismatch`` is raised.

    Derived here.
    """

    steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None:
            check_whole(self.steps, "steps of LearningRate", 1)

    def density(self, step: int) -> float:
        """Return the mean density, because the rate is not a function of the step."""
        return self.number

    def density_at(self, pace: Pace) -> float:
        """Return the density, in (0, 1], of a step at a learning rate."""
        share = pace.share
        if not share > 0:  # also for NaN, which the ranks' checksums reveal
            return LEAST
        return min(1.0, max(LEAST, self.density(0) * share))
