from __future__ import annotations

from dataclasses import dataclass

from hvd_sparse.checks import check_choice, check_whole, option
from hvd_sparse.registry import SCHEDULES
from hvd_sparse.schedules.contract import ValuedSchedule


@SCHEDULES.register("exponential_warmup")
@dataclass(frozen=True)
class ExponentialWarmup(ValuedSchedule):
    """Lower the density exponentially over the first stages of training.

        "paper": density of stage e = max(1/4^(e+1), value)
                 0.25, 0.0625, 0.015625, 0.00390625, 0.001, ...
        "code":  density of stage e = max(c^(e+1), value), c = value^(1/(stages+1))
                 0.316, 0.1, 0.0316, 0.01, ...

    The lists of numbers are examples for 5 stages and ``value`` 0.001; e is 0 in the first stage.

    Parameters
    ----------
    stage_steps : number of steps in a stage; in the paper, a stage is an epoch
    stages : number of stages, after which the density is ``value``
    formula : "paper"; or "code", as in the authors' later code, against that code's documentation

    Notes
    -----
    A stage runs dense if a dense allreduce moves no more bytes than a sparse step of this stage.

    Paper: lin2018dgc.
    """

    stage_steps: int = option(check_whole, least=1)
    stages: int = option(check_whole, 5, least=0)
    formula: str = option(check_choice, "paper", choices=("paper", "code"))

    def density(self, step: int) -> float:
        stage, value = step // self.stage_steps, self.number
        if stage >= self.stages:
            return value
        base = 0.25 if self.formula == "paper" else value ** (1 / (self.stages + 1))
        return max(float(base ** (stage + 1)), value)
