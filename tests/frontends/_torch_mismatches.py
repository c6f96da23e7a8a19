"""Faults of set-up: reductions and process sets that cannot be restored, ranks that run different
things."""

from __future__ import annotations

from functools import partial
from typing import Any

import horovod.torch as hvd
import torch
from _common import Cases
from _torch_fault_tools import (
    compress,
    is_usable,
    last_rank,
    optimize,
    raised_by,
    reduce_by_hand,
    small_model,
    step_of,
)
from torch import nn

REDUCTIONS = {"min": hvd.Min, "max": hvd.Max, "product": hvd.Product, "adasum": hvd.Adasum}
cases = Cases()


def optimizer_with_reduction(name: str, *, op: Any) -> dict[str, Any]:
    model = small_model()
    compressor = compress(model.named_parameters(), name=name, telemetry=True)
    result = raised_by(step_of(model, optimize(model, compressor, op=op)))
    compressor.close()
    return {**result, "is_usable": is_usable(name)}


def carrier_with_reduction(name: str, *, op: Any) -> dict[str, Any]:
    """What the call site does not see, the carrier shows."""
    model = small_model()
    compressor = compress(model.named_parameters(), name=name, telemetry=True, compress_1d=True)
    result = raised_by(reduce_by_hand(compressor, model, op=op))
    compressor.close()
    return {**result, "is_usable": is_usable(name)}


for label, op in REDUCTIONS.items():
    cases[f"optimizer_with_{label}"] = partial(optimizer_with_reduction, op=op)
    cases[f"carrier_with_{label}"] = partial(carrier_with_reduction, op=op)


def process_set_cases(subset: Any) -> Cases:
    """The compressor's process set and Horovod's differ, both ways round, and out of the
    optimizer's sight."""
    found = Cases()

    @found
    def process_set_of_the_optimizer_is_smaller(name: str) -> dict[str, Any]:
        model = small_model()
        compressor = compress(model.named_parameters(), name=name)
        result = raised_by(step_of(model, optimize(model, compressor, process_set=subset)))
        compressor.close()
        return {**result, "is_member": subset.included(), "is_usable": is_usable(name)}

    @found
    def process_set_of_the_compressor_is_smaller(name: str) -> dict[str, Any]:
        model = small_model()
        compressor = compress(model.named_parameters(), name=name, process_set=subset)
        result = raised_by(step_of(model, optimize(model, compressor)))
        compressor.close()
        return {**result, "is_usable": is_usable(name)}

    @found
    def process_set_of_the_allreduce_is_smaller(name: str) -> dict[str, Any]:
        model = small_model()
        compressor = compress(model.named_parameters(), name=name, compress_1d=True)
        result = raised_by(reduce_by_hand(compressor, model, process_set=subset))
        compressor.close()
        return {**result, "is_member": subset.included(), "is_usable": is_usable(name)}

    return found


def train_once(case: str, model: nn.Module, **options: Any) -> dict[str, Any]:
    compressor = compress(model.named_parameters(), **{"name": case, **options})
    result = raised_by(step_of(model, optimize(model, compressor)))
    compressor.close()
    return {**result, "is_usable": is_usable(case)}


@cases
def another_density_on_one_rank(name: str) -> dict[str, Any]:
    return train_once(name, small_model(), density=0.5 if last_rank() else 0.25)


@cases
def another_option_on_one_rank(name: str) -> dict[str, Any]:
    return train_once(name, small_model(), compress_1d=last_rank())


@cases
def a_layer_that_only_one_rank_has(name: str) -> dict[str, Any]:
    model = small_model()
    if last_rank():
        model.append(nn.Linear(3, 3))
    return train_once(name, model)


@cases
def other_shapes_on_one_rank(name: str) -> dict[str, Any]:
    """As when the sizes of a model are drawn from a seed that differs."""
    return train_once(name, small_model(hidden=7 if last_rank() else 8))


@cases
def other_shapes_and_names_by_default_on_one_rank(name: str) -> dict[str, Any]:
    """Without ``name=``, names come from the shapes, so that the collectives' names differ as
    well."""
    return train_once(name, small_model(hidden=7 if last_rank() else 8), name=None)


@cases
def another_step_on_one_rank(name: str) -> dict[str, Any]:
    """One rank goes on from an older checkpoint than the others."""
    model = small_model()
    compressor = compress(model.named_parameters(), name=name)
    optimizer = optimize(model, compressor)
    step_of(model, optimizer)()
    checkpoint = compressor.state_dict()
    step_of(model, optimizer)()
    if last_rank():
        compressor.load_state_dict(checkpoint)
    result = raised_by(step_of(model, optimizer))
    compressor.close()
    return {**result, "is_usable": is_usable(name)}


@cases
def an_optimizer_that_outlives_its_compressor(name: str) -> dict[str, Any]:
    """Horovod's hooks of it are still on the parameters when they are given to another."""
    model = small_model()
    compressor = compress(model.named_parameters(), name=name)
    forgotten = optimize(model, compressor)
    step_of(model, forgotten)()
    compressor.close()
    return train_once(name, model)


def unknown_gradient(name: str, *, key: str, everywhere: bool) -> dict[str, Any]:
    """A parameter was replaced after the compressor had been given it: same name, same shape, not
    the same."""
    model = small_model()
    named = dict(model.named_parameters())
    if everywhere or last_rank():
        named[key] = nn.Parameter(torch.zeros_like(named[key]))
    compressor = compress(named.items(), name=name)
    optimizer = optimize(model, compressor)
    result = raised_by(step_of(model, optimizer))
    compressor.close()
    return {**result, "is_usable": is_usable(name)}


for key in ("0.weight", "1.weight", "3.weight", "3.bias"):
    cases[f"unknown_{key}_on_one_rank"] = partial(unknown_gradient, key=key, everywhere=False)
    cases[f"unknown_{key}_on_all_ranks"] = partial(unknown_gradient, key=key, everywhere=True)


@cases
def all_gradients_unknown_on_one_rank(name: str) -> dict[str, Any]:
    """One rank's compressor was given a copy of the model."""
    model = small_model()
    compressor = compress((small_model() if last_rank() else model).named_parameters(), name=name)
    result = raised_by(step_of(model, optimize(model, compressor)))
    compressor.close()
    return {**result, "is_usable": is_usable(name)}
