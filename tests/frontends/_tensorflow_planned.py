"""Groups that are planned in a run of TensorFlow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from _common import SPARSE_ONLY, Cases, caught
from _tensorflow_cases import (
    Books,
    Compression,
    digest_of,
    linear_loss,
    tape_gradients,
    variables_of,
)

from hvd_sparse.plan import measurements
from hvd_sparse.plan.measurements import STEPS, WARMUP

SHAPES = {f"t{i}": s for i, s in enumerate([(16, 40), (60, 5), (30,), (4, 5, 6), (3, 3), (7,)])}
ADOPTED_AT = 1 + WARMUP + STEPS
"""The step's number: before the first gradient there is nothing to begin."""
WINDOWS = {"SETTLING": 1, "WINDOW": 2, "REVIEW_EVERY": 4, "FACTOR": 1.0}
"""Windows of two steps, and any difference between two of them is a departure."""
cases = Cases()


class Run(Books):
    """Steps that are traced anew where the groups are others."""

    def __init__(self, method: Any, *, as_function: bool = True, **options: Any) -> None:
        chosen = {"density": 0.05, **SPARSE_ONLY, **options}
        super().__init__(SHAPES, lambda params: method(params, **chosen), as_function=as_function)
        self.digests: list[str] = []
        self.others: list[int] = []

    def take_planned_step(self, number: int) -> None:
        if self.compressor.configuration.groups and self.compressor.replan():
            self.others.append(number)
            self.how["groups"] = self.compressor.groups
            self.wrap()
        self.digests.append(digest_of(self.take_step(self.gradients(number))))


def names_of(compressor: Any) -> Any:
    groups = compressor.groups
    return groups and [[variable.name for variable in members] for members in groups]


@cases
def planned_makes_no_difference(name: str) -> dict[str, Any]:
    """In a function and eagerly, beside steps without a plan."""
    found: dict[str, Any] = {}
    for kind, groups, as_function in (
        ("without", None, True),
        ("function", "planned", True),
        ("eager", "planned", False),
    ):
        options = {"name": f"{name}.{kind}", "groups": groups, "as_function": as_function}
        tapes = Run(Compression.ldte_bs, **options)
        for number in range(ADOPTED_AT + 4):
            tapes.take_planned_step(number)
        found[kind] = {
            "digests": tapes.digests,
            "others": tapes.others,
            "groups": names_of(tapes.compressor),
            "plan": tapes.compressor.plan and tapes.compressor.plan.to_dict(),
            "lost": tapes.lost(),
        }
        tapes.compressor.close()
    return found


@cases
def planned_merged_layers(name: str) -> dict[str, Any]:
    """``mgs``: what is lost behind every step, while groups change thrice."""
    usual = {key: getattr(measurements, key) for key in WINDOWS}
    for key, value in WINDOWS.items():
        setattr(measurements, key, value)
    try:
        run, lost, groups = Run(Compression.mgs, name=name, groups="planned"), [], []
        for number in range(2 * ADOPTED_AT + 10):
            run.take_planned_step(number)
            lost.append(run.lost())
            groups.append(names_of(run.compressor))
        run.compressor.close()
    finally:
        for key, value in usual.items():
            setattr(measurements, key, value)
    return {"lost": lost, "groups": groups, "others": run.others, "digests": run.digests}


@cases
def planned_where_it_cannot_be(name: str) -> dict[str, Any]:
    variables = variables_of(SHAPES.values())
    usual = Compression.topk(variables, density=0.1, name=name)
    alone = Compression.mgs(variables, density=0.1, name=f"{name}.alone", **SPARSE_ONLY)
    loss = linear_loss(variables, [tf.ones(shape) for shape in SHAPES.values()])
    told = {
        "no plan": caught(usual.replan),
        "no groups": caught(lambda: tape_gradients(loss, variables, alone)),
    }
    usual.close()
    alone.close()
    return told
