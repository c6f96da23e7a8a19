"""Faults of set-up: reductions and process sets that cannot be restored, ranks that run different
things."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf
from _common import SPARSE_ONLY, Cases
from _keras_models import fit, make_model
from _tensorflow_cases import (
    Compression,
    hvd,
    linear_loss,
    outcome_of,
    summed,
    tape_gradients,
    variables_of,
)
from _tensorflow_keras import OPTIMIZERS
from harness import slow
from horovod.tensorflow.keras import DistributedOptimizer

SHAPES = ((8, 6), (6,), (6, 3))
TIMEOUT_S = slow(5.0)
REDUCTIONS = {"min": hvd.Min, "max": hvd.Max, "product": hvd.Product, "adasum": hvd.Adasum}
MISMATCHES = Cases()


def last_rank() -> bool:
    """The rank on which faults happen that only one rank has."""
    return hvd.rank() == hvd.size() - 1


def compress(params: Any, **options: Any) -> Any:
    """A compressor that is always sparse."""
    chosen = {**SPARSE_ONLY, "density": 0.25, "timeout_s": TIMEOUT_S, **options}
    return Compression.topk(params, **chosen)


def step_of(variables: Any, compressor: Any, **options: Any) -> Any:
    """A training step on random data, as a call."""
    coefficients = [tf.random.normal(v.shape) for v in variables]
    return lambda: tape_gradients(
        linear_loss(variables, coefficients), variables, compressor, **options
    )


def is_usable(name: str) -> bool:
    """Whether Horovod still adds up."""
    return float(summed(1.0, f"{name}.usable")) == hvd.size()


def fails(name: str, compressor: Any, step: Any) -> dict[str, Any]:
    """What becomes of a step, and of Horovod; the compressor is closed."""
    outcome = outcome_of(step)
    compressor.close()
    return {**outcome, "is_usable": is_usable(name)}


def reduction(
    name: str, *, op: Any, groups: Any = None, as_function: bool = False, later: bool = False
) -> dict[str, Any]:
    """Of the first step, or of a later one: the carrier shows what the handshake has not seen."""
    variables = variables_of(SHAPES)
    compressor = compress(variables, name=name, telemetry=True)
    if later:
        step_of(variables, compressor)()
    step = step_of(variables, compressor, op=op, groups=groups)
    return fails(name, compressor, tf.function(step) if as_function else step)


for label, op in REDUCTIONS.items():
    of_op = partial(reduction, op=op)
    MISMATCHES[f"{label}_eagerly"] = of_op
    MISMATCHES[f"{label}_in_a_function_with_groups"] = partial(of_op, groups=2, as_function=True)
    MISMATCHES[f"{label}_in_a_later_step"] = partial(of_op, later=True)


def another_process_set(name: str, *, ours: Any, theirs: Any, later: bool) -> dict[str, Any]:
    variables = variables_of(SHAPES)
    compressor = compress(variables, name=name, process_set=ours)
    if later:
        step_of(variables, compressor, process_set=ours)()
    return fails(name, compressor, step_of(variables, compressor, process_set=theirs))


def process_set_cases(process_sets: dict[str, Any]) -> Cases:
    """The compressor's process set and Horovod's differ, both ways round, from the start and
    later."""
    found = Cases()
    if len(process_sets) < 2:  # two ranks have no set that is smaller and is more than one
        return found
    everyone, some = process_sets["all"], process_sets["one_left_out"]
    for label, ours, theirs in (
        ("smaller_of_the_tape", everyone, some),
        ("smaller_of_the_compressor", some, everyone),
    ):
        for when, later in (("", False), ("_in_a_later_step", True)):
            case = partial(another_process_set, ours=ours, theirs=theirs, later=later)
            found[f"process_set_{label}{when}"] = case
    return found


def one_step(case: str, variables: Any, **options: Any) -> dict[str, Any]:
    compressor = compress(variables, **{"name": case, **options})
    return fails(case, compressor, step_of(variables, compressor))


@MISMATCHES
def another_density_on_one_rank(name: str) -> dict[str, Any]:
    return one_step(name, variables_of(SHAPES), density=0.5 if last_rank() else 0.25)


@MISMATCHES
def another_option_on_one_rank(name: str) -> dict[str, Any]:
    return one_step(name, variables_of(SHAPES), compress_1d=last_rank())


def other_variables(case: str, *, theirs: Any, **options: Any) -> dict[str, Any]:
    return one_step(case, variables_of(theirs if last_rank() else SHAPES), **options)


OTHERS = [(8, 7), (7,), (7, 3)]
"""Of a model whose sizes are drawn from another seed."""
MISMATCHES["a_layer_that_only_one_rank_has"] = partial(other_variables, theirs=[*SHAPES, (3, 3)])
MISMATCHES["other_shapes_on_one_rank"] = partial(other_variables, theirs=OTHERS)
# Names come from the shapes then, so that the collectives' names differ as well.
MISMATCHES["other_shapes_and_names_by_default_on_one_rank"] = partial(
    other_variables, theirs=OTHERS, name=None
)


@MISMATCHES
def another_density_on_one_rank_of_keras(name: str) -> dict[str, Any]:
    model = make_model()
    compressor = compress(
        lambda: model.trainable_variables, name=name, density=0.5 if last_rank() else 0.25
    )
    return fails(
        name,
        compressor,
        lambda: fit(model, DistributedOptimizer(OPTIMIZERS["new"](0.1), compression=compressor)),
    )


@MISMATCHES
def another_step_on_one_rank(name: str) -> dict[str, Any]:
    """One rank goes on from an older checkpoint than the others."""
    variables = variables_of(SHAPES)
    compressor = compress(variables, name=name)
    step_of(variables, compressor)()
    checkpoint = compressor.state_dict()
    step_of(variables, compressor)()
    if last_rank():
        compressor.load_state_dict(checkpoint)
    return fails(name, compressor, step_of(variables, compressor))


def unknown_gradient(
    name: str, *, on_all: bool = False, later: bool = False, groups: int | None = None
) -> dict[str, Any]:
    """A compressor has a copy of one variable: same name and shape, not the same.

    later : a trace that was made for registered variables runs for another one
    """
    variables, copies = variables_of(SHAPES), variables_of(SHAPES)
    here = on_all or last_rank()
    if later:
        compressor = compress(variables[:1], name=name)
        step_of(variables[:1], compressor)()
        return fails(name, compressor, step_of((copies if here else variables)[:1], compressor))
    given = variables[:2] if on_all else [*variables[:2], (copies if here else variables)[2]]
    compressor = compress(given, name=name)
    return fails(name, compressor, step_of(variables, compressor, groups=groups))


UNKNOWN: dict[str, dict[str, Any]] = {
    "on_all_ranks": {"on_all": True},
    "on_all_ranks_in_a_later_step": {"on_all": True, "later": True},
    "on_one_rank_in_a_later_step": {"later": True},
    "on_one_rank": {},
    "on_one_rank_in_a_group": {"groups": 1},
}
for where, options in UNKNOWN.items():
    MISMATCHES[f"unknown_gradient_{where}"] = partial(unknown_gradient, **options)
