"""``Compression.auto``: nothing is lost however the ways change, and all ranks take the same
one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from _common import SCRIPT, SPARSE_ONLY, Cases, Scripted
from _tensorflow_cases import (
    Books,
    Compression,
    digest_of,
    hvd,
    linear_loss,
    outcome_of,
    residuals_of,
    tape_gradients,
    variables_of,
)
from _tensorflow_laws import student, teacher_data, train_by_keras, train_by_tape

from hvd_sparse.plan.fallback import Trial
from hvd_sparse.plan.policy import WAYS

SHAPES = ((16, 40), (60, 5), (30,))
SPOILED_STEP = 3
"""The first dense one, which sends the residuals."""
AUTO = Cases()


class Told(Trial):
    """A trial that is told how long the steps of a way took."""

    def __init__(self, seconds: dict[str, float], **options: Any) -> None:
        self._seconds, self._way = seconds, ""
        super().__init__(**{"ways": WAYS, "steps": 2, "review_every": 0, **options})

    def next(self, last_s: float | None, agree: Any) -> str:
        told = None if last_s is None else self._seconds[self._way] * (1 + 0.01 * hvd.rank())
        self._way = super().next(told, agree)
        return self._way


class AutoBooks(Books):
    """Books of an ``auto``, whose gradients depend on rank and step alone; ``trial`` stands in for
    its own."""

    def __init__(
        self, name: str, trial: Any = None, *, dtypes: Any = None, of_auto: Any = None, **how: Any
    ) -> None:
        dtypes = dtypes or [tf.float32] * len(SHAPES)
        made = [variables_of([s], f"t{i}", d)[0] for i, (s, d) in enumerate(zip(SHAPES, dtypes))]
        chosen = {"density": 0.05, "codec": "index_value", **(of_auto or {})}
        chosen["process_set"] = how.get("process_set", hvd.global_process_set)
        compressor = Compression.auto(made, name=name, **chosen, **SPARSE_ONLY)
        if trial is not None:
            compressor._policy.trial = trial
        super().__init__(compressor, made, **how)

    def gradients(self, step: int) -> list[Any]:
        draw = np.random.RandomState(100 * step + hvd.rank())
        return [tf.constant(draw.randint(-8, 9, v.shape), v.dtype) for v in self.variables]

    def take_auto_step(self, step: int) -> list[np.ndarray]:
        return self.take_step(self.gradients(step))

    def spoil(self, step: int) -> None:
        """A step with NaN on one rank; nothing of it is to be seen afterwards."""
        gradients = self.gradients(step)
        if hvd.rank() == hvd.size() - 1:
            gradients[1] = gradients[1] * np.nan
        self.run(gradients)

    def waiting(self) -> int:
        """Entries that are kept back on this rank."""
        return sum(int(np.count_nonzero(array)) for array in residuals_of(self.compressor).values())


def alike(value: Any, name: str) -> bool:
    """Whether all ranks have the same."""
    return len(set(hvd.allgather_object(repr(value), name=f"test.{name}"))) == 1


def change(name: str, *, spoiled: bool = False, **options: Any) -> dict[str, Any]:
    """Steps of all ways: what is lost after each, and whether replicas have the same."""
    books = AutoBooks(name, Scripted(SCRIPT), **options)
    lost, replicas, waiting = [], [], []
    for step in range(len(SCRIPT)):
        if spoiled and step == SPOILED_STEP:
            books.spoil(step)
        else:
            replicas.append(alike(digest_of(books.take_auto_step(step)), f"{name}.replicas"))
        lost.append(books.lost(f"{name}.{step}"))
        waiting.append(books.waiting())
    stats = books.compressor.stats()
    books.compressor.close()
    return {
        "lost": lost,
        "alike": all(replicas),
        "waiting": waiting,
        **{key: stats[key] for key in ("sparse_steps", "dense_steps", "dense_bytes")},
    }


for how, options in {
    "in_a_function": {},
    "eagerly": {"as_function": False},
    "in_groups": {"groups": 2},
    "with_other_dtypes": {"dtypes": [tf.float16, tf.float64, tf.float32]},
    "through_a_step_that_is_taken_back": {"spoiled": True},
}.items():
    AUTO[f"auto_ways_change_{how}"] = partial(change, **options)


@AUTO
def auto_gradients_are_horovods_on_every_way(name: str) -> dict[str, Any]:
    """At density 1: how far apart the gradients are, in units of the largest."""
    settings = {"average": {"op": hvd.Average}, "sum": {"op": hvd.Sum}}
    settings["predivide"] = {"op": hvd.Average, "gradient_predivide_factor": 2.0}
    apart, whole = [], 0
    for label, options in settings.items():
        books = AutoBooks(
            f"{name}.{label}",
            Scripted(["sparse", "dense", "dense", "fp16", "sparse"]),
            of_auto={"density": 1.0},
            **options,
        )
        for step in range(5):
            ours = books.take_auto_step(step)
            loss = linear_loss(books.variables, books.gradients(step))
            theirs = tape_gradients(loss, books.variables, hvd.Compression.none, **options)
            pairs = [(a, np.asarray(b)) for a, b in zip(ours, theirs)]
            apart.append(max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs))
        whole += books.compressor.stats()["entries_sent"]
        books.compressor.close()
    return {"apart": apart, "entries_sent": whole}


@AUTO
def auto_trials_end_as_their_times_say(name: str) -> dict[str, Any]:
    """And start anew in a new world."""
    results = {}
    for fastest in WAYS:
        seconds = {way: 0.1 if way == fastest else 0.15 for way in WAYS}
        books = AutoBooks(f"{name}.{fastest}", Told(seconds))
        for step in range(15):
            books.take_auto_step(step)
        verdict, waiting = books.compressor.verdict, books.waiting()
        books.compressor.rejoin()
        again = books.compressor.verdict
        for step in range(15, 20):
            books.take_auto_step(step)
        results[fastest] = {
            "way": None if verdict is None else verdict.way,
            "alike": alike(verdict, f"{name}.{fastest}"),
            "waiting": waiting,
            "again": again,
            "lost": books.lost(f"{name}.{fastest}"),
        }
        books.compressor.close()
    return results


@AUTO
def auto_decides_alike_by_its_own_clock(name: str) -> dict[str, Any]:
    books = AutoBooks(name, of_auto={"trial_steps": 2, "review_every": 8})
    books.compressor.resolve()
    allgather, asked = books.compressor.collective.allgather, []

    def listening(array: np.ndarray, name: str) -> Any:
        if name.startswith("hvd_sparse.trial."):
            asked.append((len(verdicts), books.compressor.verdict is None))
        return allgather(array, name)

    books.compressor.collective.allgather = listening
    verdicts: list[str] = []
    for step in range(40):
        books.take_auto_step(step)
        verdicts.append(str(books.compressor.verdict))
    found = books.compressor.verdict
    result = {
        "alike": alike(verdicts, f"{name}.verdicts") and alike(asked, f"{name}.asked"),
        "ways": sorted({way for way in WAYS for verdict in verdicts if way in verdict}),
        "seconds": [] if found is None else list(found.seconds.values()),
        "reviewed": any(not in_trial for _, in_trial in asked),
        "lost": books.lost(name),
    }
    books.compressor.close()
    return result


@AUTO
def auto_sends_a_state_that_is_loaded_on_a_dense_way(name: str) -> dict[str, Any]:
    books = AutoBooks(name, Scripted(["sparse"] * 3 + ["dense"] * 4))
    for step in range(6):
        if step == 3:
            saved = books.compressor.state_dict()
            waiting = books.waiting()
        books.take_auto_step(step)
    books.compressor.load_state_dict(saved)
    books.take_auto_step(6)
    left = books.waiting()
    books.compressor.close()
    return {"waiting": waiting, "left": left}


@AUTO
def auto_of_two_tapes_in_one_function(name: str) -> dict[str, Any]:
    """One compressor, and no order between the tapes but the program's."""
    variables = variables_of(((30, 20), (20, 30)))
    compressor = Compression.auto(
        variables, density=0.05, name=name, codec="index_value", **SPARSE_ONLY
    )
    compressor._policy.trial = Scripted(["sparse", "dense", "dense", "sparse", "fp16", "dense"] * 3)

    @tf.function
    def step(gradients: Any) -> Any:
        return [
            tape_gradients(linear_loss([v], [g]), [v], compressor)[0]
            for v, g in zip(variables, gradients)
        ]

    draw = np.random.RandomState(hvd.rank())
    digests = []
    for _ in range(9):
        gradients = [tf.constant(draw.standard_normal(v.shape), tf.float32) for v in variables]
        digests.append(digest_of(step(gradients)))
    compressor.close()
    return {"alike": alike(digests, name), "steps_left": len(compressor._policy.trial.left)}


def auto_leaves_alone_who_is_not_in_its_process_set(name: str, process_set: Any) -> dict[str, Any]:
    books = AutoBooks(name, Scripted(["sparse", "dense", "dense", "fp16"]), process_set=process_set)
    steps = [digest_of(books.take_auto_step(step)) for step in range(4)]
    books.compressor.close()
    is_member = process_set.included()
    told = hvd.allgather_object((is_member, steps), name=f"{name}.steps")
    return {
        "is_member": is_member,
        "left": len(books.compressor._policy.trial.left),
        "alike": len({repr(steps) for is_member, steps in told if is_member}) == 1,
    }


def train(name: str, run: Any, **options: Any) -> dict[str, Any]:
    """Training on all ways, in turn: what the weights are, and whether anything was learnt."""
    results = {}
    for label, ways in {"changing": SCRIPT[:10] * 2, "dense": ["dense"] * 20}.items():
        model = student()
        compressor = Compression.auto(
            model, density=0.02, name=f"{name}.{label}", min_numel=256, allow_dense=False
        )
        compressor._policy.trial = Scripted(ways)
        inputs, targets = teacher_data()
        before = float(tf.reduce_mean((model(inputs) - targets) ** 2))
        run(model, compressor, tf.constant(inputs), tf.constant(targets), steps=20, **options)
        after = float(tf.reduce_mean((model(inputs) - targets) ** 2))
        results[label] = {
            "digest": digest_of(model.get_weights()),
            "learnt": after / before,
            "left": len(compressor._policy.trial.left),
            "weights": [float(np.abs(weight).sum()) for weight in model.get_weights()],
        }
        compressor.close()
    model = student()
    run(model, hvd.Compression.none, tf.constant(inputs), tf.constant(targets), steps=20, **options)
    results["none"] = {"weights": [float(np.abs(weight).sum()) for weight in model.get_weights()]}
    return results


AUTO["auto_trains_by_tape"] = partial(train, run=train_by_tape)
AUTO["auto_trains_by_keras"] = partial(train, run=train_by_keras)
AUTO["auto_trains_by_keras_in_groups"] = partial(train, run=train_by_keras, groups=2)


@AUTO
def auto_refuses_what_it_cannot(name: str) -> dict[str, Any]:
    variables = variables_of(SHAPES)
    make = partial(Compression.auto, variables, **SPARSE_ONLY)
    bare = make(name=f"{name}.bare")
    last = hvd.rank() == hvd.size() - 1
    other = make(name=f"{name}.other", trial_steps=3 if last else 5)
    loss = linear_loss(variables, [tf.ones(shape) for shape in SHAPES])
    found = {
        "momentum": outcome_of(lambda: make(name=name, memory="momentum_correction")),
        "planned": outcome_of(lambda: make(name=name, groups="planned")),
        "bare": outcome_of(lambda: hvd.allreduce(variables[0], compression=bare)),
        "other": outcome_of(lambda: tape_gradients(loss, variables, other)),
    }
    bare.close()
    other.close()
    return found
