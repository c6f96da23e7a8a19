"""Dense warm-up: dense steps, then sparse steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.checks import check_whole
from hvd_sparse.density_rule import Density, check_rule, number_of
from hvd_sparse.registry import SCHEDULES


@SCHEDULES.register("dense_warmup")
@dataclass(frozen=True)
class DenseWarmup:
    """Send all entries for some steps, then a fixed density.

    Parameters
    ----------
    value : the density after the warm-up, in (0, 1], or a rule by tensor; if it is left out of a
        schedule given as a mapping, it is the method's density
    warmup_steps : number of steps at density 1, which run dense

    Paper: fang2019redsync.
    """

    value: Density
    warmup_steps: int

    paper: ClassVar[str | None] = "fang2019redsync"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_rule(self.value, f"value of {type(self).__name__}"))
        check_whole(self.warmup_steps, "warmup_steps of DenseWarmup", 0)

    def density(self, step: int) -> float:
        return 1.0 if step < self.warmup_steps else number_of(self.value, "DenseWarmup")

    def at_density(self, density: float) -> DenseWarmup:
        return replace(self, value=density)
