from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import ValuedSchedule


@SCHEDULES.register("constant")
@dataclass(frozen=True)
class Constant(ValuedSchedule):
    """Use the same density at every step."""

    def density(self, step: int) -> float:
        return self.number
