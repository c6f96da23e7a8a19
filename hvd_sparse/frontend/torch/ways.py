"""The way of every tensor: on the host, on its device, or copied from the device and back.

On the device residual, gradient and result stay there, and what is selected travels.  The table
says which parts and options can; everything else is staged (``staging``), for the reason that it
gives. A part that is not in the table, as one of a user's own, is staged.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping

import torch

from hvd_sparse.configuration import Configuration
from hvd_sparse.core.kernels.engines import works_on_devices
from hvd_sparse.frontend.torch.staging import is_on_device
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Option

HOST, DEVICE, STAGED = "host", "device", "staged"
"""The ways of a tensor: its gradient is on the CPU; it stays on its device; it is copied to the
host, and its result back."""

CAN = ""
"""The reason of what stays on the device."""
WHOLE = "sends a value for every entry, so that the whole tensor would travel"
AS_ARRAY = "works on the vector as an array of the host"
SPEAKS_AGAIN = "looks at the vector again between its phases"
WITH_THOSE = "is for selectors that work on the vector as an array of the host"
SUMS = "adds up vectors on the host"

TABLE: Mapping[str, Mapping[str, str]] = {
    "selector": {
        "adacomp": "tells this step's part of the vector from the residual",
        "chunk_max": AS_ARRAY,
        "chunked": CAN,
        "dgc_sampled": CAN,
        "ef_sign": WHOLE,
        "fixed_threshold": CAN,
        "gaussian_k": CAN,
        "ldte": CAN,
        "ldte_bs": CAN,
        "radix_select": CAN,
        "random_k": CAN,
        "redsync_search": CAN,
        "redsync_signs": AS_ARRAY,
        "redsync_trimmed": CAN,
        "reused_threshold": CAN,
        "sbc": AS_ARRAY,
        "sidco": CAN,
        "sign_vote": WHOLE,
        "stc": CAN,
        "terngrad": WHOLE,
        "topk": CAN,
    },
    "memory": {
        "adam_correction": CAN,
        "error_feedback": CAN,
        "low_pass": SUMS,
        "majority_vote": SUMS,
        "momentum_correction": CAN,
        "none": "selects from the gradient itself, which the result overwrites",
    },
    "codec": {
        "auto": CAN,
        "bitmap": CAN,
        "block16": CAN,
        "bloom": "sends entries that the selector did not choose",
        "chunk12": CAN,
        "dense": WHOLE,
        "golomb": CAN,
        "index_value": CAN,
        "one_bit": WHOLE,
        "one_sign": WITH_THOSE,
        "run16": CAN,
        "sign_index": CAN,
        "sign_mean": CAN,
        "ternary": WITH_THOSE,
        "two_bit": WHOLE,
    },
    "exchange": {
        "allgather": CAN,
        "auto": "may choose one that looks at the vector again",
        "gtopk": SPEAKS_AGAIN,
        "hierarchical": "sums whole gradients before anything is selected",
        "oktopk": SPEAKS_AGAIN,
        "shared_index": SPEAKS_AGAIN,
    },
    "schedule": {
        "constant": CAN,
        "dense_warmup": CAN,
        "exponential_warmup": CAN,
        "piecewise": CAN,
    },
}
"""By kind and id of a part: nothing, or why tensors are staged with it."""

OPTIONS: Mapping[str, tuple[Callable[[Option], bool], str] | None] = {
    "min_numel": None,
    "compress_1d": None,
    "rollback": (operator.not_, "False leaves what a pass took in its list alone"),
    "groups": None,
    "select_over": (lambda chosen: chosen == "group", "'group' joins vectors on the host"),
    "max_gathered_bytes": None,
    "allow_dense": None,
    "on_nonfinite": None,
    "check_replicas_every": (bool, "reads results on the host"),
    "telemetry": (bool, "measures residuals on the host"),
    "telemetry_every": None,
    "summary_at_end": None,
    "engine": (lambda engine: not works_on_devices(engine), "is made for arrays of the host"),
    "name": None,
    "timeout_s": None,
    "wire": None,
}
"""By common option: nothing, or which choices are staged, and why."""


MEMORY_OPTIONS: Mapping[str, tuple[Option, str]] = {
    "residual": ("float32", "rounds on the host"),
    "clip_norm": (None, "takes norms on the host"),
}
"""Options of memories: the only choice that stays on the device, and why others are staged."""


def why_staged(configuration: Configuration, spec: TensorSpec) -> str:
    """Return why a gradient on a device is staged, in words; nothing where it stays there.

    Parameters
    ----------
    configuration : parts and options
    spec : the tensor
    """
    if not configuration.is_sparse(spec.shape, spec.numel):
        return "never compressed: Horovod is given tensors of the CPU"
    for kind in TABLE:
        part = getattr(configuration, kind)
        if part is None:  # no schedule
            continue
        reason = TABLE[kind].get(part.id, "is not known to work on devices")
        if reason:
            return f"{kind} {part.id!r} {reason}"
    for option, staged in OPTIONS.items():
        if staged is not None and staged[0](getattr(configuration, option)):
            return f"{option} {staged[1]}"
    for option, (staying, reason) in MEMORY_OPTIONS.items():
        chosen = getattr(configuration.memory, option, staying)
        if chosen != staying:
            return f"memory {configuration.memory.id!r} with {option} {chosen!r} {reason}"
    return CAN


def ways_of(
    named: Iterable[tuple[TensorSpec, torch.Tensor]],
    configuration: Configuration,
    *,
    can_stay: bool,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the ways of parameters' gradients, by name, and why those that are staged are.

    Parameters
    ----------
    named : the tensors, and what ranks agree on about each
    configuration : parts and options
    can_stay : the frontend can leave gradients on their device
    """
    ways, reasons = {}, {}
    for spec, parameter in named:
        ways[spec.key] = HOST
        if not is_on_device(parameter):
            continue
        reason = why_staged(configuration, spec)
        if not can_stay:
            reason = "DistributedDataParallel keeps gradients in buckets of its own"
        ways[spec.key] = STAGED if reason else DEVICE
        if reason:
            reasons[spec.key] = reason
    return ways, reasons


def in_words() -> str:
    """Return the parts with which gradients stay on their device."""
    kinds = ("selector", "memory", "codec", "exchange")
    return "; ".join(
        f"{kind} {', '.join(id for id, reason in TABLE[kind].items() if not reason)}"
        for kind in kinds
    )
