from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from hvd_sparse.checks import check_whole, option
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import ValuedSchedule


@SCHEDULES.register("dense_warmup")
@dataclass(frozen=True)
class DenseWarmup(ValuedSchedule):
    """Send all entries in the first steps, then use a fixed density.

    Parameters
    ----------
    warmup_steps : number of first steps. They run dense (as an allreduce of the whole tensor) or,
        with ``allow_dense=False``, send all entries through the codec

    Paper: fang2019redsync.
    """

    warmup_steps: int = option(check_whole, least=0)

    sends_all_dense: ClassVar[bool] = True

    def density(self, step: int) -> float:
        return 1.0 if step < self.warmup_steps else self.number
