"""DGC's warm-up: a density that falls exponentially from stage to stage."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from hvd_sparse.checks import check_choice, check_whole
from hvd_sparse.density_rule import Density, check_rule, number_of
from hvd_sparse.registry import SCHEDULES

FORMULAS = ("paper", "code")


@SCHEDULES.register("exponential_warmup")
@dataclass(frozen=True)
class ExponentialWarmup:
    """Lower the density exponentially over the first stages of training.

        "paper": density of stage e = max(1/4^(e+1), value)
                 0.25, 0.0625, 0.015625, 0.00390625, 0.001, ...
        "code":  density of stage e = max(c^(e+1), value), c = value^(1/(stages+1))
                 0.316, 0.1, 0.0316, 0.01, ...

    (values for 5 stages and 0.001)

    Parameters
    ----------
    value : the density after the warm-up, in (0, 1], or a rule by tensor; if it is left out of a
        schedule given as a mapping, it is the method's density
    stage_steps : number of steps of a stage; in the paper those of an epoch
    stages : number of stages; afterwards the density is ``value``
    formula : "paper", or "code", the formula of the authors' later code, which contradicts that
        code's documentation

    Notes
    -----
    Stages in which a dense exchange moves no more bytes than a sparse one run dense.

    Paper: lin2018dgc.
    """

    value: Density
    stage_steps: int
    stages: int = 5
    formula: str = "paper"

    paper: ClassVar[str | None] = "lin2018dgc"

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_rule(self.value, f"value of {type(self).__name__}"))
        check_choice(self.formula, "formula of ExponentialWarmup", FORMULAS)
        check_whole(self.stage_steps, "stage_steps of ExponentialWarmup", 1)
        check_whole(self.stages, "stages of ExponentialWarmup", 0)

    def density(self, step: int) -> float:
        stage, value = step // self.stage_steps, number_of(self.value, "ExponentialWarmup")
        if stage >= self.stages:
            return value
        base = 0.25 if self.formula == "paper" else value ** (1 / (self.stages + 1))
        return max(float(base ** (stage + 1)), value)

    def at_density(self, density: float) -> ExponentialWarmup:
        return replace(self, value=density)
