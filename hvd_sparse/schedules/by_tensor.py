"""Schedules that end at a density of each tensor's own."""

from __future__ import annotations

import dataclasses

from hvd_sparse.density_rule import Density, DensityRule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import Schedule
from hvd_sparse.types import TensorSpec


def schedule_for(density: Density | None, given: object) -> Schedule | None:
    """Return the schedule that was given, or one density at every step; None without either.

    A mapping without ``value`` takes the density.

    Parameters
    ----------
    density : the selector's own; None for one that is told none
    given : the option ``schedule``
    """
    if given is None:
        return None if density is None else SCHEDULES.create("constant", value=density)
    if isinstance(given, dict) and density is not None:
        names = [each.name for each in dataclasses.fields(SCHEDULES.get(given.get("id")))]  # type: ignore
        if "value" in names and "value" not in given:
            given = {**given, "value": density}
    schedule: Schedule = SCHEDULES.resolve(given)
    return schedule


class SchedulesByTensor:
    """The schedules of all tensors, made as they are asked for.

    Parameters
    ----------
    schedule : that ends at one density, or at a rule's
    rule : densities by tensor
    """

    def __init__(self, schedule: Schedule, rule: DensityRule) -> None:
        self._schedule, self._rule = schedule, rule
        self._made: dict[str | None, Schedule] = {}

    def of(self, spec: TensorSpec | None) -> Schedule:
        """Return the schedule of a tensor; at the mean density, for None.

        Raises
        ------
        InvalidOption : the tensor has no density, or the mean is not known yet
        """
        key = None if spec is None else spec.key
        made = self._made.get(key)
        if made is None:
            density = self._rule.mean if spec is None else self._rule.density_of(spec)
            if density is None:
                raise InvalidOption(
                    f"density is the rule {self._rule!r}, whose mean is known once the tensors "
                    "are: for_tensors(specs) comes first; compressors do that by themselves"
                )
            made = self._made[key] = self._schedule.at_density(density)
        return made
