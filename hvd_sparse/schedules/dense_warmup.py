"""Dense warm-up: dense steps at first, sparse ones afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.checks import check_density, check_whole
from hvd_sparse.registry import SCHEDULES


@SCHEDULES.register("dense_warmup")
@dataclass(frozen=True)
class DenseWarmup:
    """Send everything for some steps, then a fixed density.

    Parameters
    ----------
    value : float in (0, 1], the density after the warm-up
    warmup_steps : steps at density 1, which run dense

    Paper: fang2019redsync.
    """

    value: float
    warmup_steps: int

    paper: ClassVar[str | None] = "fang2019redsync"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_density(self.value))
        check_whole(self.warmup_steps, "warmup_steps of DenseWarmup", 0)

    def density(self, step: int) -> float:
        return 1.0 if step < self.warmup_steps else self.value
