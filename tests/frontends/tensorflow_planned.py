"""Worker: groups that are planned in a run of TensorFlow."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SPARSE_ONLY, Cases, run_cases
from _tensorflow_cases import (
    Books,
    Compression,
    begin,
    digest_of,
    end,
    hvd,
    linear_loss,
    meet,
    outcome_of,
    tape_gradients,
    variables_of,
)

from hvd_sparse.plan import measurements
from hvd_sparse.plan.measurements import STEPS, WARMUP

SHAPES = ((16, 40), (60, 5), (30,), (4, 5, 6), (3, 3), (7,))
ADOPTED_AT = 1 + WARMUP + STEPS
"""The step's number: before the first gradient there is nothing to begin."""
WINDOWS = {"SETTLING": 1, "WINDOW": 2, "REVIEW_EVERY": 4, "FACTOR": 1.0}
"""Windows of two steps, and any difference between two of them is a departure."""
cases = Cases()


class Run(Books):
    """Steps of integer gradients, traced anew where the groups are others."""

    def __init__(self, compressor: Any, variables: list[Any], *, as_function: bool) -> None:
        super().__init__(compressor, variables, as_function=as_function)
        self._draw = np.random.RandomState(hvd.rank())
        self.digests: list[str] = []
        self.others: list[int] = []

    def take_planned_step(self, number: int) -> None:
        if self.compressor.configuration.groups and self.compressor.replan():
            self.others.append(number)
            self.options["groups"] = self.compressor.groups
            self.trace()
        gradients = [self._draw.randint(-9, 10, shape) for shape in SHAPES]
        self.digests.append(digest_of(self.take_step(gradients)))


def names_of(compressor: Any) -> Any:
    groups = compressor.groups
    return groups and [[variable.name for variable in members] for members in groups]


@cases
def a_plan_makes_no_difference(name: str) -> dict[str, Any]:
    """In a function and eagerly, beside steps without a plan."""
    found: dict[str, Any] = {}
    for kind, groups, as_function in (
        ("without", None, True),
        ("function", "planned", True),
        ("eager", "planned", False),
    ):
        variables = variables_of(SHAPES, f"{kind}")
        options = {**SPARSE_ONLY, "density": 0.05, "name": f"{name}.{kind}", "groups": groups}
        compressor = Compression.ldte_bs(variables, **options)
        tapes = Run(compressor, variables, as_function=as_function)
        for number in range(ADOPTED_AT + 4):
            tapes.take_planned_step(number)
        found[kind] = {
            "digests": tapes.digests,
            "others": tapes.others,
            "groups": names_of(tapes.compressor),
            "plan": tapes.compressor.plan and tapes.compressor.plan.to_dict(),
            "lost": tapes.lost(f"{name}.{kind}"),
        }
        tapes.compressor.close()
    return found


@cases
def merged_layers_are_planned_and_planned_anew(name: str) -> dict[str, Any]:
    """``mgs``: what is lost behind every step, while groups change thrice."""
    usual = {key: getattr(measurements, key) for key in WINDOWS}
    for key, value in WINDOWS.items():
        setattr(measurements, key, value)
    try:
        variables = variables_of(SHAPES)
        compressor = Compression.mgs(
            variables, density=0.05, name=name, groups="planned", **SPARSE_ONLY
        )
        run, lost, groups = Run(compressor, variables, as_function=True), [], []
        for number in range(2 * ADOPTED_AT + 10):
            run.take_planned_step(number)
            lost.append(run.lost(f"{name}.{number}"))
            groups.append(names_of(compressor))
        compressor.close()
    finally:
        for key, value in usual.items():
            setattr(measurements, key, value)
    return {"lost": lost, "groups": groups, "others": run.others, "digests": run.digests}


@cases
def what_cannot_be_is_refused(name: str) -> dict[str, Any]:
    variables = variables_of(SHAPES)
    usual = Compression.topk(variables, density=0.1, name=name)
    alone = Compression.mgs(variables, density=0.1, name=f"{name}.alone", **SPARSE_ONLY)
    loss = linear_loss(variables, [tf.ones(shape) for shape in SHAPES])
    told = {
        "no plan": outcome_of(usual.replan),
        "no groups": outcome_of(lambda: tape_gradients(loss, variables, alone)),
    }
    usual.close()
    alone.close()
    return told


if __name__ == "__main__":
    begin(int(sys.argv[1]))
    run_cases(cases, hvd.rank(), meet)
    end()
