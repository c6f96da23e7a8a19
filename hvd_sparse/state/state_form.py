"""The fields of a saved state (``Compressor.state_dict``) and their types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from hvd_sparse.errors import CorruptCheckpoint

State = Mapping[str, Any]
"""A saved state, or one of its tensors.  Any, because it comes from a file or a program;
``check_form`` validates it."""
NewState = dict[str, Any]
"""A newly created state, which the caller may modify."""

FIELDS = ("config", "model", "rank", "world_size", "reduction", "tensors")
TENSOR_FIELDS = ("steps", "threshold", "memo", "is_sparse", "arrays")
REDUCTIONS = ("sum", "average")


def check_form(state: State) -> None:
    """Raise CorruptCheckpoint unless a state has all fields with values of the right types."""
    missing, wrong = [field for field in FIELDS if field not in state], ""
    if not missing:
        wrong = ", ".join(f"{field} is {_short(state[field])}" for field in _wrong_fields(state))
    if not missing and not wrong:
        told = state["tensors"].items()
        missing = [
            f"{field} of {key!r}"
            for key, tensor in told
            for field in TENSOR_FIELDS
            if field not in tensor
        ]
        if not missing:
            wrong = "; ".join(words for key, tensor in told for words in _wrong_with(key, tensor))
    if missing:
        raise CorruptCheckpoint(
            f"this is not a state of a compressor: it lacks {', '.join(missing)}; give the result "
            "of state_dict()"
        )
    if wrong:
        raise CorruptCheckpoint(
            f"this is not a valid state of a compressor: {wrong}; use an older one"
        )


def _wrong_fields(state: State) -> list[str]:
    wrong = [
        field for field in ("config", "model", "tensors") if not isinstance(state[field], Mapping)
    ]
    wrong += [field for field in ("rank", "world_size") if not _is_whole(state[field])]
    if not wrong and not all(isinstance(tensor, Mapping) for tensor in state["tensors"].values()):
        wrong.append("tensors")
    if not any(state["reduction"] == known for known in REDUCTIONS):
        wrong.append("reduction")
    return wrong


def _wrong_with(key: str, tensor: State) -> list[str]:
    """Return the reasons why a tensor's state is not valid."""
    fine = {
        "steps": _is_whole(tensor["steps"]),
        "threshold": tensor["threshold"] is None or _is_number(tensor["threshold"]),
        "memo": _is_memo(tensor["memo"]),
        "exchange_memo": _is_memo(tensor.get("exchange_memo")),
        "is_sparse": isinstance(tensor["is_sparse"], bool),
        "density": _is_density(tensor.get("density", 1.0)),
        "numbers": _is_numbers(tensor.get("numbers", {})),
        "selected_in": isinstance(tensor.get("selected_in", ""), (str, type(None))),
        "arrays": isinstance(tensor["arrays"], Mapping),
    }
    wrong = [
        f"{field} of {key!r} is {_short(tensor[field])}"
        for field, is_fine in fine.items()
        if not is_fine
    ]
    arrays = tensor["arrays"] if fine["arrays"] else {}
    for name, array in arrays.items():
        try:
            values = np.asarray(array)
        except (ValueError, TypeError, RuntimeError):
            values = np.empty((), object)
        if values.ndim != 1 or values.dtype.kind != "f":
            wrong.append(
                f"its {name} of {key!r} is not a vector of floats: its dtype is {values.dtype}, "
                f"its shape {list(values.shape)}"
            )
    return wrong


def _is_whole(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= 0)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False


def _is_density(value: object) -> bool:
    return value is None or (_is_number(value) and 0.0 < float(value) <= 1.0)  # type: ignore[arg-type]


def _is_numbers(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and _is_number(number) and math.isfinite(number)
        for name, number in value.items()
    )


def _is_memo(value: object) -> bool:
    """Return whether a value is None, a number, a list of numbers, or a mapping to these."""
    if isinstance(value, Mapping):
        return all(
            isinstance(name, str) and not isinstance(v, Mapping) and _is_memo(v)
            for name, v in value.items()
        )
    return (
        value is None
        or _is_number(value)
        or (isinstance(value, (list, tuple)) and all(map(_is_number, value)))
    )


def _short(value: object) -> str:
    return repr(value)[:80]
