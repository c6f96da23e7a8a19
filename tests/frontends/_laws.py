"""Laws of both frameworks: plans change no bit, ``Compression.auto`` loses no entry and decides
alike on all ranks, and steps are dense at high densities."""

from dataclasses import asdict
from functools import partial

import numpy as np
from _common import SCRIPT, Cases, Scripted, caught
from _framework import NAME, fw

from hvd_sparse.plan import measuring
from hvd_sparse.plan.measuring import STEPS, WARMUP
from hvd_sparse.plan.policy import WAYS

hvd = fw.hvd
SHAPES = {"wide": (16, 40), "tall": (60, 5), "one": (30,)}
cases = Cases()
"""Cases of two or more ranks."""


@cases
def high_density_goes_dense(name):
    """At density 0.5, sparse messages would not have fewer bytes, so all steps must be dense."""
    books = fw.Books(SHAPES, "ldte_bs", name=name, density=0.5, allow_dense=True)
    for step in range(3):
        books.take_step(books.gradients(step))
    stats, lost, kept = books.compressor.stats(), books.lost(), books.waiting()
    books.compressor.close()
    assert (lost, kept, stats["dense_steps"], stats["sparse_steps"]) == (0, 0, 9, 0)


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


def change(name, *, spoiled=False, itemsize=4, **options):
    """Change ways by the script; with ``spoiled``, the first dense step is taken back.

    itemsize : mean bytes of an entry that TensorFlow sends dense
    """
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
    assert not any(lost), lost
    assert all(replicas)
    is_sparse = [way == "sparse" for way in SCRIPT]
    is_sparse[SPOILED_STEP] = spoiled
    assert [each > 0 for each in waiting] == is_sparse, waiting
    assert (stats["sparse_steps"], stats["dense_steps"]) == (8 * 3, 3 * 3)
    if NAME == "tensorflow":  # in PyTorch they are Horovod's own, which nobody counts
        assert stats["dense_bytes"] == 970 * ((3 + 2) * itemsize + 3 * 2)


AUTO["auto_changes_ways"] = change
if NAME == "tensorflow":
    for label, options in {
        "eagerly": {"how": {"as_function": False}},
        "in_groups": {"how": {"groups": 2}},
        "with_other_dtypes": {
            "dtypes": ["float16", "float64", "float32"],
            "itemsize": (640 * 4 + 300 * 8 + 30 * 4) / 970,
        },
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
    alike, lost = books.alike([verdicts, asked]), books.lost()
    books.compressor.rejoin()
    again = books.compressor.verdict
    books.compressor.close()
    assert alike and lost == 0
    assert all(any(way in verdict for verdict in verdicts) for way in WAYS)
    assert any(not in_trial for _, in_trial in asked), "nothing was reviewed"
    assert again is None, "a new world needs a new trial"


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
    assert left == 0 < waiting


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
        assert run.alike([run.digests[NAN_AT + 1 :], run.adopted(), run.plans, run.groups[-1]])
        run.compressor.close()
        found[kind] = run
    usual = found.pop("without")
    for run in found.values():
        assert run.digests == usual.digests
        assert sorted(key for members in run.groups[-1] for key in members) == sorted(MORE_SHAPES)
        for plan in filter(None, run.plans):
            assert set(plan["predicted_s"]) == {"none", "all", "default", "planned"}
            assert plan["predicted_s"]["planned"] == min(plan["predicted_s"].values())
            assert plan["wire"]["start_s"] > 0 or NAME == "tensorflow"
        if NAME == "torch":
            assert run.adopted() == [ADOPTED_AT, REJOINED_AT + ADOPTED_AT], run.adopted()
            assert run.groups[REJOINED_AT] == run.groups[0], "a new worker has other groups"
        else:
            assert run.others == [ADOPTED_AT] and len(run.adopted()) == 1
            assert usual.groups[-1] is None and len(set(run.digests)) == TAKEN


def planned_by_members(name, process_sets):
    """The ranks of a process set plan for themselves."""
    members, plan = process_sets["one_left_out"], None
    if hvd.size() == 1 or members.included():
        schedule = {"id": "dense_warmup", "value": 0.1, "warmup_steps": 100}
        options = {"process_set": members, "schedule": schedule, "allow_dense": True}
        how = {"process_set": members}
        run = Run("topk", how=how, name=name, groups="planned", density=0.1, **options)
        for step in range(ADOPTED_AT + 1):
            run.take_planned_step(step)
        plan, nbytes = run.plans[-1], run.compressor._policy.measurements.to_dict()["nbytes"]
        run.compressor.close()
        # Steps in the warm-up are dense, and the plan is for those behind it.
        assert set(nbytes) == set(MORE_SHAPES) and 4 * 64 <= nbytes["wide"] <= 12 * 64, nbytes
    plans = [each for each in hvd.allgather_object(plan, name=f"{name}.plans") if each]
    assert plans and all(each == plans[0] for each in plans)


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
    refused = caught(usual.regroup, "planned")
    is_last = hvd.rank() == hvd.size() - 1
    different = caught(usual.regroup, [["unknown"]] if is_last else 2)
    usual.close()
    assert "groups is 'planned', which can only be chosen before the first step" in refused
    assert ("no tensor has this name" if is_last else "different groups") in different
    has_plan = [plan is not None for plan in run.plans]
    assert has_plan == [step >= 2 * ADOPTED_AT for step in range(len(has_plan))]


WINDOWS = {"SETTLING": 1, "WINDOW": 2, "REVIEW_EVERY": 4, "FACTOR": 1.0}
"""Windows of two steps. Any difference between two windows counts as a change of the times."""


def planned_merged_layers(name):
    usual = {key: getattr(measuring, key) for key in WINDOWS}
    try:
        for key, value in WINDOWS.items():
            setattr(measuring, key, value)
        run, lost = Run("mgs", name=name, groups="planned"), []
        for number in range(2 * ADOPTED_AT + 10):
            run.take_planned_step(number)
            lost.append(run.lost())
        alike, groups = run.alike([run.groups, run.digests]), run.groups
        run.compressor.close()
    finally:
        for key, value in usual.items():
            setattr(measuring, key, value)
    assert alike and set(lost) == {0}, lost
    changes = [number for number in range(1, len(groups)) if groups[number] != groups[number - 1]]
    assert run.others == changes, (run.others, changes)
    adopted, departed, again = changes[:3]
    assert adopted == ADOPTED_AT and groups[adopted] is not None
    assert groups[departed] is None and groups[again] is not None
    assert again - departed == ADOPTED_AT


def planned_with_a_variable_that_no_loss_uses(name):
    run = Run("ldte_bs", name=name, groups="planned")
    for step in range(ADOPTED_AT + 3):
        gradients = run.gradients(step)
        del gradients["wide"]
        run.take_planned_step(step, gradients)
    assert run.alike([run.digests, run.groups[-1]])
    run.compressor.close()
    planned = {key for members in run.groups[-1] for key in members}
    assert planned == set(MORE_SHAPES) - {"wide"}, planned


def replanned_without_a_plan(name):
    run = Run("topk", name=name)
    said = caught(run.compressor.replan)
    run.compressor.close()
    assert said.startswith("InvalidOption: ") and "groups='planned'" in said


if NAME == "torch":
    PLANNED(groups_are_given_and_planned_again)
else:
    PLANNED(planned_merged_layers)
    PLANNED(planned_with_a_variable_that_no_loss_uses)
    PLANNED(replanned_without_a_plan)
