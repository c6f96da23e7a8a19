"""``groups="planned"``: all ranks adopt one plan at one step, and no bit of any gradient tells."""

from __future__ import annotations

from typing import Any

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases, caught
from _torch_cases import Books, digest_of, give_gradients, optimizer_without_motion
from _torch_laws import integers
from torch import nn

from hvd_sparse.plan.measurements import STEPS, WARMUP
from hvd_sparse.torch import Compression

SHAPES = {
    "wide": (16, 40),
    "tall": (60, 5),
    "one": (30,),
    "deep": (4, 5, 6),
    "small": (3, 3),
    "bias": (7,),
}
ADOPTED_AT = WARMUP + STEPS
NAN_AT, LOADED_AT, MISSING_AT, REJOINED_AT = 3, 4, 6, ADOPTED_AT + 3
TAKEN = REJOINED_AT + ADOPTED_AT + 2
cases = Cases()


def gradients_of(ledger: Books, step: int) -> dict[str, Any]:
    gradients = ledger.gradients(step)
    if step == NAN_AT and hvd.rank() == hvd.size() - 1:
        gradients["tall"][1, 2] = float("nan")
    if step in (MISSING_AT, ADOPTED_AT):
        del gradients["wide"]
    return gradients


@cases
def a_plan_makes_no_difference(name: str) -> dict[str, Any]:
    """With NaN, a missing gradient, a loaded state and a new world while steps are measured."""
    digests, plans, buckets = [], [], []
    for number, groups in enumerate((None, "planned")):
        options = {
            **SPARSE_ONLY,
            "density": 0.05,
            "name": f"{name}.{number}",
            "groups": groups,
            "compress_1d": False,
        }
        ledger = Books(SHAPES, lambda named, options=options: Compression.ldte_bs(named, **options))
        compressor, applied = ledger.compressor, []
        for step in range(TAKEN):
            if step == LOADED_AT:
                compressor.load_state_dict(compressor.state_dict())
            if step == REJOINED_AT:
                compressor.rejoin()
            ledger.take_step(gradients_of(ledger, step))
            applied.append(digest_of([parameter.grad for parameter in ledger.variables.values()]))
            if groups:
                plans.append(compressor.plan and compressor.plan.to_dict())
                buckets.append(
                    sorted(position for bucket in compressor.step.buckets for position in bucket)
                )
        digests.append(applied)
        compressor.close()
    told = hvd.allgather_object(plans, name=f"{name}.plans")
    return {
        "digests": digests,
        "adopted": [
            step for step in range(TAKEN) if plans[step] and not (step and plans[step - 1])
        ],
        "plans": [plan for plan in plans if plan],
        "alike": all(each == told[0] for each in told),
        "buckets": buckets,
    }


@cases
def groups_are_given_and_planned_again(name: str) -> dict[str, Any]:
    options = {**SPARSE_ONLY, "density": 0.05, "name": name}
    ledger = Books(SHAPES, lambda named: Compression.ldte_bs(named, groups="planned", **options))
    compressor, has_plan = ledger.compressor, []
    for step in range(2 * ADOPTED_AT + 2):
        if step == 1:
            compressor.regroup(2)
        if step == ADOPTED_AT:
            compressor.regroup("planned")
        ledger.take_step(ledger.gradients(step))
        has_plan.append(compressor.plan is not None)
    compressor.close()
    usual = Books(SHAPES, lambda named: Compression.ldte_bs(named, **options)).compressor
    refused = caught(usual.regroup, "planned")
    usual.close()
    both = caught(lambda: Compression.auto(ledger.variables.items(), groups="planned", name=name))
    return {"has_plan": has_plan, "refused": refused, "both": both}


def planned_by_members(name: str, process_sets: dict[str, Any]) -> dict[str, Any]:
    """By some of the ranks, with two passes a step, in a dense warm-up."""
    members = process_sets["one_left_out"]
    if hvd.size() > 1 and not members.included():
        return {"plan": None, "is_member": False}
    parameters = {key: nn.Parameter(torch.zeros(shape)) for key, shape in SHAPES.items()}
    schedule = {"id": "dense_warmup", "value": 0.1, "warmup_steps": 100}
    options = {"process_set": members, "schedule": schedule, **SPARSE_ONLY, "allow_dense": True}
    compressor = Compression.topk(
        parameters.items(), density=0.1, name=name, groups="planned", **options
    )
    optimizer = optimizer_without_motion(
        parameters, compressor, process_set=members, backward_passes_per_step=2
    )
    for step in range(2 * (ADOPTED_AT + 1)):
        give_gradients(
            {p: integers(p.shape, hvd.rank(), step, i) for i, p in enumerate(parameters.values())}
        )
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    plan, nbytes = compressor.plan, compressor._policy.measurements.to_dict()["nbytes"]
    compressor.close()
    return {"plan": plan and plan.to_dict(), "is_member": True, "nbytes": nbytes}
