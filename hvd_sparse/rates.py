"""Learning rates of a run, as far as they are known ahead, for densities that follow them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import Pace

logger = logging.getLogger("hvd_sparse")

SLACK = 0.05
"""Part by which a rate may differ from the one that was foreseen."""


@dataclass(eq=False)
class Rates:
    """The rates to compare with, by parameter group.

    Parameters
    ----------
    path : rates by step and group, as foreseen; or the first rates alone
    is_foreseen : which of these
    """

    path: Sequence[Sequence[float]]
    is_foreseen: bool

    def __post_init__(self) -> None:
        self._references = [sum(rates) / len(rates) for rates in zip(*self.path)]
        self._has_warned = False
        for group, reference in enumerate(self._references):
            if self.is_foreseen and not reference > 0:
                raise InvalidOption(
                    f"the learning rate of parameter group {group} is {reference} on average: a "
                    "density that follows it would send nothing; use a schedule with rates above 0"
                )

    def pace(self, rate: float, group: int, step: int) -> Pace:
        """Return the pace of a step.

        Parameters
        ----------
        rate : the optimizer's, now
        group : of the tensor's parameters
        step : completed steps of the tensor
        """
        if group >= len(self._references):  # added to the optimizer later
            return Pace(rate, rate, is_mean=False)
        if self.is_foreseen and not self._has_warned and self._is_off(rate, group, step):
            self._has_warned = True
            logger.warning(
                "the learning rate is %g at step %d, where its scheduler, stepped once a step, "
                "would have %g, so the density will not have the mean that was asked for: if the "
                "scheduler is stepped once an epoch, give the schedule its steps, "
                'schedule={"id": "learning_rate", "steps": epochs}',
                rate,
                step,
                self.path[min(step, len(self.path) - 1)][group],
            )
        return Pace(rate, self._references[group], self.is_foreseen)

    def _is_off(self, rate: float, group: int, step: int) -> bool:
        """Tell whether no step nearby was foreseen to have about this rate."""
        # A step that a loss scaler skips moves no scheduler on.
        near = 10 + step // 20
        foreseen = [each[group] for each in self.path[max(0, step - near) : step + near]]
        if not foreseen:  # the run goes on longer than was said
            return False
        margin = SLACK * self._references[group]
        return not min(foreseen) - margin <= rate <= max(foreseen) + margin

    def without_check(self) -> Rates:
        """Return the same rates, for a scheduler that is not stepped once a step."""
        self._has_warned = True
        return self


def first_rates(rates: Sequence[float], why: str | None) -> Rates:
    """Return the rates to compare with where those of the run are not known ahead.

    Parameters
    ----------
    rates : by parameter group, now
    why : the mean is not known; None where nothing speaks for rates that change
    """
    if why is not None:
        logger.warning(
            "the density follows the learning rate, whose mean over the run is not known ahead, "
            "because %s: a step has the density that was asked for times rate / first rate, so "
            "that fewer bytes are sent",
            why,
        )
    return Rates([rates], is_foreseen=False)


def refuse_path(error: Exception, steps: int) -> NoReturn:
    """Raise the error of a scheduler that cannot go so far."""
    raise InvalidOption(
        f"steps is {steps}, and a copy of the scheduler could not be stepped so often "
        f"({type(error).__name__}: {error}): give the number of steps it was created for"
    ) from error
