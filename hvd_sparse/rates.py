"""Learning rates of a run, as far as known in advance, for densities that follow them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hvd_sparse.errors import InvalidOption
from hvd_sparse.types import Pace

logger = logging.getLogger("hvd_sparse")

SLACK = 0.05
"""Tolerance for differences from the predicted rate, as a fraction of the mean rate."""


@dataclass(eq=False)
class Rates:
    """Reference rates by parameter group.

    path : predicted rates by step and group; or only the first rates
    is_foreseen : whether ``path`` has predicted rates
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
        """Return the optimizer's present rate with its reference.

        group : index of the tensor's parameter group
        step : completed steps of the tensor
        """
        if group >= len(self._references):  # added to the optimizer later
            return Pace(rate, rate, is_mean=False)
        if self.is_foreseen and not self._has_warned and self._is_off(rate, group, step):
            self._has_warned = True
            logger.warning(
                "the learning rate is %g at step %d, and %g was predicted for a scheduler that is "
                "stepped once per step, so the mean density will differ from the requested one: if "
                "the scheduler is stepped once per epoch, give the number of epochs as in "
                'schedule={"id": "learning_rate", "steps": epochs}',
                rate,
                step,
                self.path[min(step, len(self.path) - 1)][group],
            )
        return Pace(rate, self._references[group], self.is_foreseen)

    def _is_off(self, rate: float, group: int, step: int) -> bool:
        # Steps that a loss scaler skips do not advance the scheduler.
        near = 10 + step // 20
        foreseen = [each[group] for each in self.path[max(0, step - near) : step + near]]
        if not foreseen:  # after the last predicted step
            return False
        margin = SLACK * self._references[group]
        return not min(foreseen) - margin <= rate <= max(foreseen) + margin

    def without_check(self) -> Rates:
        """Return these rates without the warning, for a scheduler not stepped once per step."""
        self._has_warned = True
        return self


def first_rates(rates: Sequence[float], why: str | None) -> Rates:
    """Return reference rates for a run whose rates are not known in advance.

    rates : the present rates by parameter group
    why : the reason, for a warning; None if the rates are probably constant
    """
    if why is not None:
        logger.warning(
            "the density follows the learning rate, whose mean over the run is not known in "
            "advance, because %s: the density of a step is the requested one times rate / first "
            "rate, so fewer bytes are sent than requested",
            why,
        )
    return Rates([rates], is_foreseen=False)


def refuse_path(error: Exception, steps: int) -> NoReturn:
    """Raise InvalidOption for a scheduler whose copy could not be stepped ``steps`` times."""
    raise InvalidOption(
        f"steps is {steps}, and a copy of the scheduler could not be stepped so often "
        f"({type(error).__name__}: {error}): give the number of steps it was created for"
    ) from error
