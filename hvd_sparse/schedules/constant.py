"""Constant schedule: the same density at every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.checks import check_density
from hvd_sparse.registry import SCHEDULES


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant:
    """Ask for one density from the first step on.

    Parameters
    ----------
    value : float in (0, 1]
    """

    value: float

    paper: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_density(self.value))

    def density(self, step: int) -> float:
        return self.value
