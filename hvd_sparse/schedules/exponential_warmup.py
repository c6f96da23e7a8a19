"""DGC's warm-up: ever fewer entries, a stage at a time."""

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
    value : the density after the warm-up, in (0, 1], or a rule by tensor; a schedule that is given
        as a mapping may leave it out, and ends at the method's density
    stage_steps : steps a stage: those of an epoch, as the paper has it, or any other number
    stages : how many; afterwards the density is ``value``
    formula : "paper", or what the authors' later code computes, which its own documentation
        contradicts

    Notes
    -----
    Stages at which dense moves no more bytes run dense.

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
