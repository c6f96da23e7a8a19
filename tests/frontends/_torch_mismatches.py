"""Faults of set-up: reductions and process sets that cannot be restored, ranks that run different
things."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
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


def train_once(
    case: str,
    model: nn.Module,
    *,
    named: Any = None,
    by_hand: bool = False,
    handed: Mapping[str, Any] = MappingProxyType({}),
    **options: Any,
) -> dict[str, Any]:
    """A step through Horovod, to which ``handed`` is given: by its optimizer, or by hand, where
    the call site sees nothing and the carrier shows it."""
    compressor = compress(named or model.named_parameters(), **{"name": case, **options})
    if by_hand:
        result = raised_by(reduce_by_hand(compressor, model, **handed))
    else:
        result = raised_by(step_of(model, optimize(model, compressor, **handed)))
    compressor.close()
    return {**result, "is_usable": is_usable(case)}


def reduced_by(name: str, *, op: Any, by_hand: bool) -> dict[str, Any]:
    options = {"by_hand": by_hand, "compress_1d": by_hand, "telemetry": True}
    return train_once(name, small_model(), handed={"op": op}, **options)


for label, op in REDUCTIONS.items():
    cases[f"optimizer_with_{label}"] = partial(reduced_by, op=op, by_hand=False)
    cases[f"carrier_with_{label}"] = partial(reduced_by, op=op, by_hand=True)


def process_set_cases(subset: Any) -> Cases:
    """The compressor's process set and Horovod's differ, both ways round, and out of the
    optimizer's sight."""

    theirs = {"process_set": subset}
    ways: dict[str, Any] = {
        "optimizer": {"handed": theirs},
        "compressor": theirs,
        "allreduce": {"handed": theirs, "by_hand": True, "compress_1d": True},
    }

    def train(name: str, *, whose: str) -> dict[str, Any]:
        result = train_once(name, small_model(), **ways[whose])
        return result if whose == "compressor" else {**result, "is_member": subset.included()}

    return Cases(
        {f"process_set_of_the_{whose}_is_smaller": partial(train, whose=whose) for whose in ways}
    )


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
def another_compressor_on_one_rank(name: str) -> dict[str, Any]:
    """One rank has made two, and trains with the one that the others have not."""
    model = small_model()
    theirs = compress(model.named_parameters(), name=name)
    besides = compress(model.named_parameters(), name=f"{name}.besides") if last_rank() else None
    result = raised_by(step_of(model, optimize(model, besides or theirs)))
    for compressor in filter(None, (theirs, besides)):
        compressor.close()
    return {**result, "is_usable": is_usable(name)}


@cases
def an_unused_compressor_on_one_rank(name: str) -> dict[str, Any]:
    """One rank has made another before, which nobody uses."""
    model = small_model()
    unused = (
        compress(small_model().named_parameters(), name=f"{name}.unused") if last_rank() else None
    )
    result = train_once(name, model)
    if unused is not None:
        unused.close()
    return result


@cases
def subnormal_numbers_flushed_on_one_rank(name: str) -> dict[str, Any]:
    if last_rank():
        assert torch.set_flush_denormal(True)
    try:
        return train_once(name, small_model())
    finally:
        torch.set_flush_denormal(False)


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
    return train_once(name, model, named=named.items())


for key in ("0.weight", "1.weight", "3.weight", "3.bias"):
    cases[f"unknown_{key}_on_one_rank"] = partial(unknown_gradient, key=key, everywhere=False)
    cases[f"unknown_{key}_on_all_ranks"] = partial(unknown_gradient, key=key, everywhere=True)


@cases
def all_gradients_unknown_on_one_rank(name: str) -> dict[str, Any]:
    """One rank's compressor was given a copy of the model."""
    model = small_model()
    given = small_model() if last_rank() else model
    return train_once(name, model, named=given.named_parameters())
