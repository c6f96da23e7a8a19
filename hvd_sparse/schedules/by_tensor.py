"""Schedules with a separate final density for each tensor."""

from __future__ import annotations

import dataclasses

from hvd_sparse.density_rule import Density, DensityRule
from hvd_sparse.errors import InvalidOption
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import Schedule
from hvd_sparse.types import TensorSpec


def schedule_for(density: Density | None, given: object) -> Schedule | None:
    """Return the schedule for the options ``density`` and ``schedule``; None if both are None.

    Without ``schedule`` the density is constant. A schedule given as a mapping without ``value``
    ends at the density.

    Parameters
    ----------
    density : the selector's density; None for selectors without one
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
    """The schedules of all tensors, created on first use.

    Parameters
    ----------
    schedule : the schedule that every tensor's is made from
    rule : final densities by tensor
    """

    def __init__(self, schedule: Schedule, rule: DensityRule) -> None:
        self._schedule, self._rule = schedule, rule
        self._made: dict[str | None, Schedule] = {}

    def of(self, spec: TensorSpec | None) -> Schedule:
        """Return the schedule of a tensor, or for None the schedule at the mean density.

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
                    f"density is the rule {self._rule!r}, whose mean depends on the tensors: call "
                    "for_tensors(specs) first, as compressors do"
                )
            made = self._made[key] = self._schedule.at_density(density)
        return made
