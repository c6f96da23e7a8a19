"""Faults of set-up: reductions and process sets that cannot be restored, ranks that run different
things."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf
from _common import Cases
from _tensorflow_cases import (
    Compression,
    hvd,
    linear_loss,
    outcome_of,
    summed,
    tape_gradients,
    variables_of,
)
from _tensorflow_keras import OPTIMIZERS, fit, make_model
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
    chosen = {
        "density": 0.25,
        "min_numel": 1,
        "compress_1d": True,
        "allow_dense": False,
        "timeout_s": TIMEOUT_S,
    }
    return Compression.topk(params, **{**chosen, **options})


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


def reduction_of_the_first_step(
    name: str, *, op: Any, groups: Any, as_function: bool
) -> dict[str, Any]:
    variables = variables_of(SHAPES)
    compressor = compress(variables, name=name, telemetry=True)
    step = step_of(variables, compressor, op=op, groups=groups)
    return fails(name, compressor, tf.function(step) if as_function else step)


def reduction_of_a_later_step(name: str, *, op: Any) -> dict[str, Any]:
    """What was not seen when hands were shaken, the carrier shows."""
    variables = variables_of(SHAPES)
    compressor = compress(variables, name=name, telemetry=True)
    step_of(variables, compressor)()
    return fails(name, compressor, step_of(variables, compressor, op=op))


for label, op in REDUCTIONS.items():
    first = partial(reduction_of_the_first_step, op=op)
    MISMATCHES[f"{label}_eagerly"] = partial(first, groups=None, as_function=False)
    MISMATCHES[f"{label}_in_a_function_with_groups"] = partial(first, groups=2, as_function=True)
    MISMATCHES[f"{label}_in_a_later_step"] = partial(reduction_of_a_later_step, op=op)


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


@MISMATCHES
def a_layer_that_only_one_rank_has(name: str) -> dict[str, Any]:
    return one_step(name, variables_of([*SHAPES, (3, 3)] if last_rank() else SHAPES))


@MISMATCHES
def other_shapes_on_one_rank(name: str) -> dict[str, Any]:
    """As when the sizes of a model are drawn from a seed that differs."""
    return one_step(name, variables_of([(8, 7), (7,), (7, 3)] if last_rank() else SHAPES))


@MISMATCHES
def other_shapes_and_names_by_default_on_one_rank(name: str) -> dict[str, Any]:
    """Without ``name=``, names come from the shapes, so that the collectives' names differ as
    well."""
    return one_step(
        name, variables_of([(8, 7), (7,), (7, 3)] if last_rank() else SHAPES), name=None
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


@MISMATCHES
def unknown_gradient_on_all_ranks(name: str) -> dict[str, Any]:
    variables = variables_of(SHAPES)
    compressor = compress(variables[:2], name=name)
    return fails(name, compressor, step_of(variables, compressor))


@MISMATCHES
def unknown_gradient_on_one_rank_in_a_group(name: str) -> dict[str, Any]:
    """As ``unknown_gradient_on_one_rank``; the others of its group are known."""
    variables, copies = variables_of(SHAPES), variables_of(SHAPES)
    compressor = compress([*variables[:2], copies[2]] if last_rank() else variables, name=name)
    return fails(name, compressor, step_of(variables, compressor, groups=1))


@MISMATCHES
def unknown_gradient_on_all_ranks_in_a_later_step(name: str) -> dict[str, Any]:
    """A trace that was made for registered variables runs for another one of the same shape."""
    variables = variables_of([(4, 3)])
    stranger = variables_of([(4, 3)])
    compressor = compress(variables, name=name)
    step_of(variables, compressor)()
    return fails(name, compressor, step_of(stranger, compressor))


@MISMATCHES
def unknown_gradient_on_one_rank_in_a_later_step(name: str) -> dict[str, Any]:
    """As above; the others train on."""
    variables = variables_of([(4, 3)])
    stranger = variables_of([(4, 3)])
    compressor = compress(variables, name=name)
    step_of(variables, compressor)()
    return fails(name, compressor, step_of(stranger if last_rank() else variables, compressor))


@MISMATCHES
def unknown_gradient_on_one_rank(name: str) -> dict[str, Any]:
    """One rank's compressor was given a copy of one variable: same name, same shape, not the
    same."""
    variables = variables_of(SHAPES)
    copies = variables_of(SHAPES)
    given = [copies[0], *variables[1:]] if last_rank() else variables
    compressor = compress(given, name=name)
    return fails(name, compressor, step_of(variables, compressor))
