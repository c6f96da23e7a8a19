"""Density along the learning rate: most entries where the steps are largest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.checks import check_whole
from hvd_sparse.density_rule import Density, check_rule, number_of
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.types import Pace

LEAST = 1e-9
"""Density at a learning rate of 0, where selectors send one entry, and memories that do an
optimizer's work none."""


@SCHEDULES.register("learning_rate")
@dataclass(frozen=True)
class LearningRate:
    """Send more entries where the optimizer's learning rate is high, and fewer where it is low.

        density of a step = min(1, value * rate / mean rate of the run)

    The rate is that of the tensor's parameter group at that step, so that ``optimizer=`` is needed.

    Parameters
    ----------
    value : mean density of the run, in (0, 1], or a rule by tensor; a schedule that is given as a
        mapping may leave it out, and has the method's density
    steps : how often the rate changes in the run: steps, or epochs where the scheduler of PyTorch
        is stepped once an epoch.  The mean is that of a copy of the scheduler (``scheduler=``) or
        of the Keras schedule.  None, where the mean is not known ahead

    Notes
    -----
    Where the mean is not known ahead, because there is no scheduler, or one that follows a metric,
    the density is value * rate / first rate, and ``value`` at most: fewer bytes than were asked
    for.

    Ranks whose rates differ raise ``RankMismatch``.

    Derived here.
    """

    value: Density
    steps: int | None = None

    paper: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_rule(self.value, f"value of {type(self).__name__}"))
        if self.steps is not None:
            check_whole(self.steps, "steps of LearningRate", 1)

    def density(self, step: int) -> float:
        """Return the mean density: rates are no function of the step."""
        return number_of(self.value, "LearningRate")

    def at_density(self, density: float) -> LearningRate:
        return replace(self, value=density)

    def density_at(self, pace: Pace) -> float:
        """Return the density at a learning rate."""
        share = pace.share
        if not share > 0:  # NaN, too, which the ranks find in each other's checksums
            return LEAST
        return min(1.0, max(LEAST, self.density(0) * share))
