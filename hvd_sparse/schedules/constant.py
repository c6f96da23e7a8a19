"""Constant schedule: the same density at every step."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.density_rule import Density, check_rule, number_of
from hvd_sparse.registry import SCHEDULES


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant:
    """Use the same density at every step.

    Parameters
    ----------
    value : the density, in (0, 1], or a rule by tensor
    """

    value: Density

    paper: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_rule(self.value, f"value of {type(self).__name__}"))

    def density(self, step: int) -> float:
        return number_of(self.value, "Constant")

    def at_density(self, density: float) -> Constant:
        return replace(self, value=density)
