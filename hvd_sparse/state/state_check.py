"""Checks that a saved state (``Compressor.state_dict``) is well-formed and fits a compressor."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hvd_sparse.checks import is_number
from hvd_sparse.configuration import LOCAL, Configuration
from hvd_sparse.errors import CorruptCheckpoint, SparseError
from hvd_sparse.kernels.arrays import is_finite
from hvd_sparse.memories.contract import Memory
from hvd_sparse.state.checkpoint_file import MALFORMED
from hvd_sparse.types import State, TensorSpec

NEW_ARRAYS = ("sent_in",)
"""Names of memories' arrays that states of earlier versions lack."""
STATE_VERSION = 2


class IncompatibleKeys(NamedTuple):
    """Names of tensors that only the compressor or only the state has, in the form in which
    ``torch.nn.Module.load_state_dict`` returns names.

    Attributes
    ----------
    missing_keys : tensors of the compressor that the state lacks; they start without a residual
    unexpected_keys : tensors of the state that the compressor lacks; their residuals are dropped
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


OF_COMPILED = "_orig_mod."
"""Prefix that ``torch.compile`` adds to the names of a module that it wraps."""


def bare(name: str) -> str:
    return name.replace(OF_COMPILED, "")


def named_as(state: State, specs: Sequence[TensorSpec]) -> State:
    """Return the state with its tensors renamed to the compressor's names, where the two names of a
    tensor differ only in the prefixes of ``torch.compile``. A malformed or ambiguous state is
    returned unchanged."""
    if not isinstance(state, Mapping):
        return state
    ours, changed = {bare(spec.key): spec.key for spec in specs}, {}
    for part in ("model", "tensors"):
        told = state.get(part)
        if not isinstance(told, Mapping) or not all(isinstance(key, str) for key in told):
            return state
        changed[part] = {ours.get(bare(key), key): value for key, value in told.items()}
        if len(changed[part]) < len(told):  # the state has a name both with and without the prefix
            return state
    return {**state, **changed}


def incompatible_keys(state: State, specs: Sequence[TensorSpec]) -> IncompatibleKeys:
    ours, theirs = [spec.key for spec in specs], list(state["model"])
    return IncompatibleKeys(
        [key for key in ours if key not in theirs], [key for key in theirs if key not in ours]
    )


def differences_of(
    state: State,
    configuration: Configuration,
    specs: Sequence[TensorSpec],
    place: tuple[int, int],
    kept: Mapping[str, int],
    *,
    strict: bool = True,
) -> list[str]:
    """Return the reasons why a state cannot be loaded on this rank; empty if it can. Raises
    CorruptCheckpoint if the state is malformed, or has NaN or Inf.

    place : this process's rank, and the number of ranks
    kept : for each tensor, the number of entries whose residual this rank keeps
    strict : if True, it is a reason that only one of state and compressor has a tensor
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise CorruptCheckpoint(
            f"this {type(state).__name__} is no state of a compressor: give the result of a "
            "compressor's state_dict()"
        )
    version = state["version"]
    if version != STATE_VERSION:
        return [f"its version is {version!r}, but this version of hvd_sparse reads {STATE_VERSION}"]
    check_form(state)
    ours = {spec.key: f"{list(spec.shape)} {spec.dtype}" for spec in specs}
    same = [spec for spec in specs if state["model"].get(spec.key) == ours[spec.key]]
    found = _of_options(state["config"], configuration, same, strict)
    found += _of_model(state["model"], ours, strict)
    unknown = [key for key in state["tensors"] if key not in kept and strict]
    found = found or [
        *_of_place(state, place),
        *(f"tensor {key!r} is unknown" for key in unknown),
        *_of_lengths(state["tensors"], configuration.memory, specs, kept),
    ]
    if not found:
        _check_numbers(state["tensors"], specs)
    return found


def _of_options(
    saved: State, configuration: Configuration, same: Sequence[TensorSpec], strict: bool
) -> list[str]:
    options = {option: value for option, value in saved.items() if option not in LOCAL}
    ours = configuration.describe()
    try:
        its = Configuration.create(**options)
        theirs = its.describe()
        # Densities may have other names and globs, if they are equal for the tensors ``same``.
        are_alike = _densities(its, same) == _densities(configuration, same)
    except (SparseError, *MALFORMED) as error:
        return [f"its configuration is not valid in this version: {error}"]
    for part, option in (("selector", "density"), ("schedule", "value")) if are_alike else ():
        its_densities, our_densities = ((each[part] or {}).get(option) for each in (theirs, ours))
        if isinstance(its_densities, dict) and isinstance(our_densities, dict):
            theirs[part] = {**theirs[part], option: our_densities}
    is_named = any(isinstance(each["groups"], tuple) for each in (theirs, ours))
    if is_named and not strict and configuration.select_over != "group":
        # The groups name the added and the removed tensors, and have no effect on results.
        theirs["groups"] = ours["groups"]
    return [
        f"{option} was {theirs[option]!r} and is {ours[option]!r}"
        for option in ours
        if option not in LOCAL and theirs[option] != ours[option]
    ]


def _densities(configuration: Configuration, specs: Sequence[TensorSpec]) -> dict[str, float]:
    """Return the densities of those tensors that are compressed, if they have a density each. Names
    in the rule of a state that was saved are compared without the prefixes of ``torch.compile``."""
    rule = configuration.rule
    if rule is None:
        return {}
    saved = replace(rule, patterns=tuple((bare(name), d) for name, d in rule.patterns))
    return {
        spec.key: rule.table.get(spec.key) or saved.density_of(replace(spec, key=bare(spec.key)))
        for spec in specs
        if configuration.is_sparse(spec.shape, spec.numel)
    }


def _of_model(saved: Mapping[str, str], ours: Mapping[str, str], strict: bool) -> list[str]:
    found = [f"tensor {key!r} is new" for key in ours if key not in saved and strict]
    found += [f"tensor {key!r} is no longer there" for key in saved if key not in ours and strict]
    changed = [key for key in saved if key in ours and saved[key] != ours[key]]
    return found + [f"tensor {key!r} was {saved[key]} and is {ours[key]}" for key in changed]


def _of_place(state: State, place: tuple[int, int]) -> list[str]:
    rank, world_size = place
    if state["world_size"] != world_size:
        return [
            f"it was saved with {state['world_size']} ranks, and this run has {world_size}: "
            "save(path) and load(path) redistribute the states of all ranks, as "
            "state.redistribution.redistribute does"
        ]
    if state["rank"] != rank:
        return [
            f"it was saved on rank {state['rank']}, and this is rank {rank}: load each rank's own "
            "state, because residuals differ between ranks"
        ]
    return []


def _of_lengths(
    tensors: State, memory: Memory, specs: Sequence[TensorSpec], kept: Mapping[str, int]
) -> list[str]:
    found = []
    for spec in specs:
        if spec.key not in tensors:
            continue
        arrays = tensors[spec.key]["arrays"]
        known = lengths_of(memory, spec, kept[spec.key])
        for name in dict.fromkeys((*known, *arrays)):
            its, length = f"its {name} of {spec.key!r}", len(arrays.get(name, ()))
            if name not in known:
                found.append(f"{its} is unknown to this memory")
            elif name not in arrays and name not in NEW_ARRAYS:
                found.append(f"{its} is missing")
            elif length not in known[name]:
                found.append(f"{its} has {length} entries, but the tensor has {known[name][0]}")
    return found


def lengths_of(memory: Memory, spec: TensorSpec, kept: int) -> dict[str, tuple[int, ...]]:
    """Return the lengths that each of a memory's arrays may have for one tensor, by the arrays'
    names. This rank keeps the residual of ``kept`` entries of the tensor. An array has this length,
    or 0 if the memory creates it empty."""
    # Create the state of a tensor of one entry, which is cheap, to learn the arrays' names.
    arrays = memory.create(replace(spec, shape=(1,)), rollback=False).arrays()
    return {name: (kept,) if len(array) else (kept, 0) for name, array in arrays.items()}


def _check_numbers(tensors: State, specs: Sequence[TensorSpec]) -> None:
    for spec in specs:
        for name, array in tensors.get(spec.key, {"arrays": {}})["arrays"].items():
            values = np.asarray(array)
            with np.errstate(over="ignore"):
                kept = values.astype(spec.accumulator, copy=False)
            if not is_finite(kept):
                place = int(np.flatnonzero(~np.isfinite(kept))[0])
                raise CorruptCheckpoint(
                    f"its {name} of {spec.key!r} is {values[place]} at entry {place}: every later "
                    "step of this tensor would fail; use an older checkpoint"
                )


def _is(kind: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kind)


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


def _is_number(value: object) -> bool:
    return is_number(value) or (isinstance(value, (float, np.floating)) and math.isinf(value))


def _is_memo(value: Any) -> bool:
    if isinstance(value, Mapping):
        inner = value.values()
        return (
            all(map(_is(str), value))
            and not any(map(_is(Mapping), inner))
            and all(map(_is_memo, inner))
        )
    is_list = isinstance(value, (list, tuple))
    return value is None or all(map(_is_number, value if is_list else [value]))


def _is_vector(value: Any) -> bool:
    try:
        values = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):
        return False
    return values.ndim == 1 and values.dtype.kind == "f"


Form = Mapping[str, Callable[[Any], bool]]
"""The fields of a state, and for each field a function that returns whether a value is valid."""
FORM: Form = {
    "config": _is(Mapping),
    "model": _is(Mapping),
    "rank": _is_whole,
    "world_size": _is_whole,
    "reduction": lambda value: isinstance(value, str) and value in ("sum", "average"),
    "references": lambda value: isinstance(value, (list, tuple)) and all(map(is_number, value)),
    "tensors": lambda value: isinstance(value, Mapping) and all(map(_is(Mapping), value.values())),
}
TENSOR_FORM: Form = {
    "steps": _is_whole,
    "threshold": lambda value: value is None or _is_number(value),
    "memo": _is_memo,
    "is_sparse": _is(bool),
    "selected_in": _is(str),
    "exchange_memo": _is_memo,
    "density": lambda value: value is None or (is_number(value) and 0.0 < value <= 1.0),
    "numbers": lambda value: isinstance(value, Mapping)
    and all(map(_is(str), value))
    and all(map(is_number, value.values())),
    "arrays": _is(Mapping),
}
OPTIONAL = ("references", "density", "numbers")


def check_form(state: State) -> None:
    """Raise CorruptCheckpoint unless a state has all fields, with values of the right types."""
    wrong = _wrong(state, FORM)
    for key, tensor in ({} if wrong else state["tensors"]).items():
        wrong += _wrong(tensor, TENSOR_FORM, f" of {key!r}") or [
            f"its {name} of {key!r} is not a vector of floats, but {repr(array)[:80]}"
            for name, array in tensor["arrays"].items()
            if not _is_vector(array)
        ]
    if wrong:
        raise CorruptCheckpoint(
            f"this is not a valid state of a compressor: {'; '.join(wrong)}; give the result of "
            "state_dict(), or use an older state"
        )


def _wrong(told: State, form: Form, whose: str = "") -> list[str]:
    missing = [f for f in form if f not in told and f not in OPTIONAL]
    invalid = [f for f, is_valid in form.items() if f in told and not is_valid(told[f])]
    return [f"it lacks {field}{whose}" for field in missing] + [
        f"{field}{whose} is {repr(told[field])[:80]}" for field in invalid
    ]
