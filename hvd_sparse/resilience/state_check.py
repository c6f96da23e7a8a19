"""Whether a saved state is this compressor's: what differs, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from hvd_sparse.configuration import LOCAL, Configuration
from hvd_sparse.errors import CorruptCheckpoint, SparseError
from hvd_sparse.types import TensorSpec

STATE_VERSION = 2
FIELDS = ("config", "model", "rank", "world_size", "reduction", "tensors")
TENSOR_FIELDS = ("steps", "threshold", "memo", "is_sparse", "arrays")


class IncompatibleKeys(NamedTuple):
    """Tensors that only one side knows, by name, as ``torch.nn.Module.load_state_dict`` tells them.

    Attributes
    ----------
    missing_keys : the compressor's own, which begin as new ones do
    unexpected_keys : the state's, which are left out, and with them what they had kept back
    """

    missing_keys: list[str]
    unexpected_keys: list[str]


def incompatible_keys(state: Mapping[str, Any], specs: Sequence[TensorSpec]) -> IncompatibleKeys:
    """What a state that is not loaded strictly does not share with the compressor."""
    ours, theirs = [spec.key for spec in specs], list(state["model"])
    return IncompatibleKeys(
        [key for key in ours if key not in theirs], [key for key in theirs if key not in ours]
    )


def differences_of(
    state: Mapping[str, Any],
    configuration: Configuration,
    specs: Sequence[TensorSpec],
    place: tuple[int, int],
    kept: Mapping[str, int],
    *,
    strict: bool = True,
) -> list[str]:
    """Why a state cannot be loaded: nothing, if it can.

    place : rank and size, now
    kept : how many entries of every tensor this rank keeps back for
    strict : both must have the same tensors
    """
    if not isinstance(state, Mapping) or state.get("version") != STATE_VERSION:
        version = state.get("version") if isinstance(state, Mapping) else None
        return [f"it has version {version!r}, this build reads {STATE_VERSION}"]
    missing = [field for field in FIELDS if field not in state]
    missing += [
        f"{f} of {key!r}"
        for key, t in state.get("tensors", {}).items()
        for f in TENSOR_FIELDS
        if f not in t
    ]
    if missing:
        raise CorruptCheckpoint(f"this is no state of a compressor: it lacks {', '.join(missing)}")
    found = _of_options(state["config"], configuration) + _of_model(state["model"], specs, strict)
    unknown = [
        f"tensor {key!r} is unknown" for key in state["tensors"] if key not in kept and strict
    ]
    return found or _of_place(state, place) + unknown + _of_arrays(state["tensors"], kept)


def _of_options(saved: Mapping[str, Any], configuration: Configuration) -> list[str]:
    try:
        theirs = Configuration.create(**saved).describe()
    except (SparseError, TypeError) as error:
        return [f"its configuration is none of this build's: {error}"]
    ours = configuration.describe()
    return [
        f"{option} was {theirs[option]!r} and is {ours[option]!r}"
        for option in ours
        if option not in LOCAL and theirs[option] != ours[option]
    ]


def _of_model(saved: Mapping[str, str], specs: Sequence[TensorSpec], strict: bool) -> list[str]:
    ours = {spec.key: f"{list(spec.shape)} {spec.dtype}" for spec in specs}
    found = [f"tensor {key!r} is new" for key in ours if key not in saved and strict]
    found += [f"tensor {key!r} is no longer there" for key in saved if key not in ours and strict]
    changed = [key for key in saved if key in ours and saved[key] != ours[key]]
    return found + [f"tensor {key!r} was {saved[key]} and is {ours[key]}" for key in changed]


def _of_place(state: Mapping[str, Any], place: tuple[int, int]) -> list[str]:
    rank, world_size = place
    if state["world_size"] != world_size:
        return [
            f"it is of a world of {state['world_size']} ranks, this one has {world_size}: "
            "save(path) and load(path) "
            "redistribute the states of all ranks, as resilience.redistribution.redistribute does"
        ]
    if state["rank"] != rank:
        return [
            f"it is rank {state['rank']}'s, this is rank {rank}: residuals belong to their rank"
        ]
    return []


def _of_arrays(tensors: Mapping[str, Any], numels: Mapping[str, int]) -> list[str]:
    return [
        f"its {name} of {key!r} has {len(array)} entries, the tensor {numels[key]}"
        for key, tensor in tensors.items()
        for name, array in tensor["arrays"].items()
        if key in numels and len(array) not in (0, numels[key])
    ]
