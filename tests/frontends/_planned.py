"""Cases of ``groups="planned"``: all ranks adopt the same plan at the same step, and the plan
changes no bit of any gradient."""

from dataclasses import asdict

from _common import SPARSE_ONLY, Cases, caught
from _framework import NAME, fw

from hvd_sparse.plan import measurements
from hvd_sparse.plan.measurements import STEPS, WARMUP

if NAME == "torch":
    import torch
    from _torch_laws import integers
    from torch import nn

hvd = fw.hvd
SHAPES = {
    "wide": (16, 40),
    "tall": (60, 5),
    "one": (30,),
    "deep": (4, 5, 6),
    "small": (3, 3),
    "bias": (7,),
}
ADOPTED_AT = WARMUP + STEPS + (NAME == "tensorflow")
"""Number of the step that adopts the plan. In TensorFlow it is one more, because a step cannot
begin before its first gradient."""
NAN_AT, LOADED_AT, MISSING_AT, REJOINED_AT = 3, 4, 6, ADOPTED_AT + 3
TAKEN = REJOINED_AT + ADOPTED_AT + 2 if NAME == "torch" else ADOPTED_AT + 4
cases = Cases()


class Run(fw.Books):
    def __init__(self, method, *, how=None, **options):
        chosen = {"density": 0.05, **SPARSE_ONLY, **options}
        super().__init__(
            SHAPES, lambda params: getattr(fw.Compression, method)(params, **chosen), **(how or {})
        )
        self.digests = []
        self.plans = []
        self.groups = []
        self.others = []

    def take_planned_step(self, number, gradients=None):
        compressor = self.compressor
        if NAME == "tensorflow" and compressor.configuration.groups and compressor.replan():
            self.others.append(number)
            self.how["groups"] = compressor.groups
            self.wrap()
        applied = self.take_step(self.gradients(number) if gradients is None else gradients)
        self.digests.append(fw.digest_of(applied))
        self.plans.append(compressor.plan and asdict(compressor.plan))
        self.groups.append(groups_of(compressor))

    def adopted(self):
        before = [None, *self.plans]
        return [step for step, plan in enumerate(self.plans) if plan and not before[step]]


def groups_of(compressor):
    if NAME == "torch":
        specs = compressor.step.specs
        return [[specs[i].key for i in bucket] for bucket in compressor.step.buckets]
    groups = compressor.groups
    return groups and [[v.name.partition(":")[0] for v in members] for members in groups]


def befallen(run, step):
    """Return the gradients of a step. In PyTorch, there are also a NaN, a missing gradient, a
    loaded state and a new world."""
    gradients = run.gradients(step)
    if NAME == "torch":
        if step == LOADED_AT:
            run.compressor.load_state_dict(run.compressor.state_dict())
        if step == REJOINED_AT:
            run.compressor.rejoin()
        if step == NAN_AT and fw.last_rank():
            gradients["tall"][1, 2] = float("nan")
        if step in (MISSING_AT, ADOPTED_AT):
            del gradients["wide"]
    return gradients


@cases
def planned_makes_no_difference(name):
    ways = {"without": (None, {}), "planned": ("planned", {})}
    if NAME == "tensorflow":
        ways["eagerly"] = ("planned", {"as_function": False})
    found = {}
    for kind, (groups, how) in ways.items():
        run = Run("ldte_bs", how=how, name=f"{name}.{kind}", groups=groups)
        for step in range(TAKEN):
            run.take_planned_step(step, befallen(run, step))
        told = {"adopted": run.adopted(), "plans": run.plans, "groups": run.groups[-1]}
        found[kind] = {"digests": run.digests, "others": run.others, **told}
        found[kind]["alike"] = run.alike(told)
        run.compressor.close()
    return found


def planned_by_members(name, process_sets):
    members = process_sets["one_left_out"]
    if hvd.size() > 1 and not members.included():
        return {"plan": None, "is_member": False}
    parameters = {key: nn.Parameter(torch.zeros(shape)) for key, shape in SHAPES.items()}
    schedule = {"id": "dense_warmup", "value": 0.1, "warmup_steps": 100}
    options = {"process_set": members, "schedule": schedule, **SPARSE_ONLY, "allow_dense": True}
    compressor = fw.Compression.topk(
        parameters.items(), density=0.1, name=name, groups="planned", **options
    )
    optimizer = fw.optimizer_without_motion(
        parameters, compressor, process_set=members, backward_passes_per_step=2
    )
    for step in range(2 * (ADOPTED_AT + 1)):
        fw.give_gradients(
            {p: integers(p.shape, hvd.rank(), step, i) for i, p in enumerate(parameters.values())}
        )
        if step % 2:
            optimizer.step()
            optimizer.zero_grad()
    plan, nbytes = compressor.plan, compressor._policy.measurements.to_dict()["nbytes"]
    compressor.close()
    return {"plan": plan and asdict(plan), "is_member": True, "nbytes": nbytes}


def groups_are_given_and_planned_again(name):
    run = Run("ldte_bs", name=name, groups="planned")
    for step in range(2 * ADOPTED_AT + 2):
        if step == 1:
            run.compressor.regroup(2)
        if step == ADOPTED_AT:
            run.compressor.regroup("planned")
        run.take_planned_step(step)
    run.compressor.close()
    usual = Run("ldte_bs", name=name).compressor
    refused = [caught(usual.regroup, "planned")]
    usual.close()
    auto = {"groups": "planned", "name": name}
    refused.append(caught(lambda: fw.Compression.auto(run.variables.items(), **auto)))
    return {"has_plan": [plan is not None for plan in run.plans], "refused": refused}


WINDOWS = {"SETTLING": 1, "WINDOW": 2, "REVIEW_EVERY": 4, "FACTOR": 1.0}
"""Windows of two steps. Any difference between two windows counts as a change of the times."""


def planned_merged_layers(name):
    usual = {key: getattr(measurements, key) for key in WINDOWS}
    try:
        for key, value in WINDOWS.items():
            setattr(measurements, key, value)
        run, lost = Run("mgs", name=name, groups="planned"), []
        for number in range(2 * ADOPTED_AT + 10):
            run.take_planned_step(number)
            lost.append(run.lost())
        run.compressor.close()
    finally:
        for key, value in usual.items():
            setattr(measurements, key, value)
    return {"lost": lost, "groups": run.groups, "others": run.others, "digests": run.digests}


def planned_where_it_cannot_be(name):
    usual, alone = Run("topk", name=name), Run("mgs", name=f"{name}.alone")
    told = [caught(usual.compressor.replan), caught(alone.run, alone.gradients(0))]
    usual.compressor.close()
    alone.compressor.close()
    return told


if NAME == "torch":
    cases(groups_are_given_and_planned_again)
else:
    cases(planned_merged_layers)
    cases(planned_where_it_cannot_be)
