"""Laws of both frameworks: groups and plans change no bit, ``Compression.auto`` loses no entry and
decides alike on all ranks, and steps are dense at high densities."""

from dataclasses import asdict
from functools import partial

import numpy as np
from _common import SCRIPT, Cases, Scripted, caught
from _framework import NAME, fw

from hvd_sparse.plan import measurements
from hvd_sparse.plan.measurements import STEPS, WARMUP
from hvd_sparse.plan.policy import WAYS

if NAME == "torch":
    import torch
    from torch import nn

hvd = fw.hvd
SHAPES = {"wide": (16, 40), "tall": (60, 5), "one": (30,)}
cases = Cases()
"""Cases of TensorFlow; PyTorch's groups and dense steps have other tests."""


@cases
def groups_make_no_difference(name):
    found = []
    for groups in (None, 1, 2, [["one", "wide"]]):
        books = fw.Books(SHAPES, "ldte_bs", how={"groups": groups}, name=f"{name}.{len(found)}")
        for step in range(6):
            books.take_step(books.gradients(step))
        nbytes = books.compressor.stats()["payload_bytes"]
        applied = fw.digest_of(books.applied.values())
        found.append({"applied": applied, "kept": books.digest(), "bytes": nbytes})
        books.compressor.close()
    return found


@cases
def high_density_goes_dense(name):
    """At density 0.5, sparse messages would not have fewer bytes, so all steps must be dense."""
    books = fw.Books(SHAPES, "ldte_bs", name=name, density=0.5, allow_dense=True)
    for step in range(3):
        books.take_step(books.gradients(step))
    stats, lost, kept = books.compressor.stats(), books.lost(), books.waiting()
    books.compressor.close()
    return {"lost": lost, "kept": kept, "steps": [stats["dense_steps"], stats["sparse_steps"]]}


# -- ``Compression.auto`` -------------------------------------------------------------------------

AUTO = Cases()
SPOILED_STEP = 3
"""Number of the first dense step, which sends the residuals."""


class AutoBooks(fw.Books):
    def __init__(self, name, trial=None, *, of_auto=None, how=None, **more):
        members = (how or {}).get("process_set", hvd.global_process_set)
        chosen = {"codec": "index_value", "process_set": members, **(of_auto or {})}
        super().__init__(SHAPES, "auto", how=how, name=name, **chosen, **more)
        if trial is not None:
            self.compressor._policy.trial = trial

    def take_auto_step(self, step):
        return self.take_step(self.gradients(step))

    def spoil(self, step):
        gradients = self.gradients(step)
        if fw.last_rank():
            gradients["tall"] = gradients["tall"] * np.nan
        self.run(gradients)


def change(name, *, spoiled=False, **options):
    books = AutoBooks(name, Scripted(SCRIPT), **options)
    lost, replicas, waiting = [], [], []
    for step in range(len(SCRIPT)):
        if spoiled and step == SPOILED_STEP:
            books.spoil(step)
        else:
            replicas.append(books.alike(fw.digest_of(books.take_auto_step(step))))
        lost.append(books.lost())
        waiting.append(books.waiting())
    stats = books.compressor.stats()
    books.compressor.close()
    kept = {key: stats[key] for key in ("sparse_steps", "dense_steps", "dense_bytes")}
    return {"lost": lost, "alike": all(replicas), "waiting": waiting, **kept}


AUTO["auto_changes_ways"] = change
if NAME == "tensorflow":
    for label, options in {
        "eagerly": {"how": {"as_function": False}},
        "in_groups": {"how": {"groups": 2}},
        "with_other_dtypes": {"dtypes": ["float16", "float64", "float32"]},
        "through_a_step_that_is_taken_back": {"spoiled": True},
    }.items():
        AUTO[f"auto_changes_ways_{label}"] = partial(change, **options)

    @AUTO
    def auto_changes_ways_predivided(name):
        # A third of a number is not exact in binary.
        is_exact = hvd.size() != 3
        return change(name, how={"gradient_predivide_factor": 2.0} if is_exact else {})


@AUTO
def auto_decides_alike_by_its_own_clock(name):
    books = AutoBooks(name, of_auto={"trial_steps": 2, "review_every": 8})
    trial, asked, verdicts = books.compressor._policy.trial, [], []
    own = trial.next

    def listening(last_s, agree):
        def noted(mine):
            asked.append((len(verdicts), books.compressor.verdict is None))
            return agree(mine)

        return own(last_s, noted)

    trial.next = listening
    for step in range(40):
        books.take_auto_step(step)
        verdicts.append(str(books.compressor.verdict))
    result = {
        "alike": books.alike([verdicts, asked]),
        "ways": sorted({way for way in WAYS for verdict in verdicts if way in verdict}),
        "reviewed": any(not in_trial for _, in_trial in asked),
        "lost": books.lost(),
    }
    books.compressor.rejoin()
    result["again"] = books.compressor.verdict
    books.compressor.close()
    return result


@AUTO
def auto_sends_a_state_that_is_loaded_on_a_dense_way(name):
    books = AutoBooks(name, Scripted(["sparse"] * 3 + ["dense"] * 4))
    for step in range(6):
        if step == 3:
            saved, waiting = books.compressor.state_dict(), books.waiting()
        books.take_auto_step(step)
    books.compressor.load_state_dict(saved)
    books.take_auto_step(6)
    left = books.waiting()
    books.compressor.close()
    return {"waiting": waiting, "left": left}


# -- ``groups="planned"`` -------------------------------------------------------------------------

PLANNED = Cases()
MORE_SHAPES = {**SHAPES, "deep": (4, 5, 6), "small": (3, 3), "bias": (7,)}
ADOPTED_AT = WARMUP + STEPS + (NAME == "tensorflow")
"""Number of the step that adopts the plan. In TensorFlow it is one more, because a step cannot
begin before its first gradient."""
NAN_AT, LOADED_AT, MISSING_AT, REJOINED_AT = 3, 4, 6, ADOPTED_AT + 3
TAKEN = REJOINED_AT + ADOPTED_AT + 2 if NAME == "torch" else ADOPTED_AT + 4


class Run(fw.Books):
    def __init__(self, method, **options):
        super().__init__(MORE_SHAPES, method, **options)
        self.digests, self.plans, self.groups, self.others = [], [], [], []

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


@PLANNED
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
    parameters = {key: nn.Parameter(torch.zeros(shape)) for key, shape in MORE_SHAPES.items()}
    schedule = {"id": "dense_warmup", "value": 0.1, "warmup_steps": 100}
    options = {"process_set": members, "schedule": schedule, "min_numel": 1, "compress_1d": True}
    compressor = fw.Compression.topk(
        parameters.items(), density=0.1, name=name, groups="planned", **options
    )
    optimizer = fw.optimizer_without_motion(
        parameters, compressor, process_set=members, backward_passes_per_step=2
    )
    for step in range(2 * (ADOPTED_AT + 1)):
        fw.give_gradients({p: torch.full(p.shape, 1.0 + hvd.rank()) for p in parameters.values()})
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
    PLANNED(groups_are_given_and_planned_again)
else:
    PLANNED(planned_merged_layers)
    PLANNED(planned_where_it_cannot_be)
