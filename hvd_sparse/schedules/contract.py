"""The contract of schedules, which set the density of every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.checks import Options, option
from hvd_sparse.density_rule import Density, check_rule, number_of

LONG_RUN = 10**9
"""Number of a step that is later than any warm-up."""

UNKNOWN_DENSITY = 0.01
"""Density that estimates assume for methods without a density."""


class Schedule:
    """Base class of schedules: frozen dataclasses, registered in ``SCHEDULES``. The density of a
    tensor's step follows from the number of steps that the tensor has completed.

    Attributes
    ----------
    sends_all_dense : a step of density 1 runs dense, even if the encoded entries would take fewer
        bytes than the tensor. With ``allow_dense=False`` such a step does not run dense
    """

    id: ClassVar[str]
    sends_all_dense: ClassVar[bool] = False

    def density(self, step: int) -> float:
        """Return the density, in (0, 1], of a tensor's step. The number of the first step is 0."""
        raise NotImplementedError

    def at_density(self, density: float) -> Schedule:
        """Return this schedule with ``density``, in (0, 1], as its final or mean density."""
        raise NotImplementedError


@dataclass(frozen=True)
class ValuedSchedule(Schedule, Options):
    """Base class of schedules whose option ``value`` is their final density or their mean density.

    Parameters
    ----------
    value : the final (or mean) density, in (0, 1], or a rule that gives every tensor its own
        density. A ``schedule`` mapping without "value" uses the method's density; a "value" that
        differs from the method's density is an error
    """

    value: Density = option(check_rule)

    @property
    def number(self) -> float:
        """``value`` as a number. Raises InvalidOption if ``value`` is a rule."""
        return number_of(self.value, type(self).__name__)

    def at_density(self, density: float) -> ValuedSchedule:
        return replace(self, value=density)
