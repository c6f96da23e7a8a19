"""The path of every tensor: on the host, on its device, or copied from the device and back.

On the device, residual, gradient and result stay there, and the selection is sent.  Parts declare
whether they can work there (``needs_host``), and ``OPTIONS`` lists the common options that can;
with anything else tensors are staged (``staging``), with a reason.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping

import torch

from hvd_sparse.configuration import PARTS, Configuration
from hvd_sparse.frontend.torch.staging import is_on_device
from hvd_sparse.kernels.engines import works_on_devices
from hvd_sparse.registry import Registry
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Option

HOST, DEVICE, STAGED = "host", "device", "staged"

KINDS = ("selector", "memory", "codec", "exchange")
"""The parts that meet a tensor's vectors.  Each says itself whether it needs them on the host."""

OPTIONS: Mapping[str, tuple[Callable[[Option], bool], str] | None] = {
    "min_numel": None,
    "compress_1d": None,
    "rollback": (operator.not_, "False leaves what a pass took in its list alone"),
    "groups": None,
    "select_over": (lambda chosen: chosen == "group", "'group' joins vectors on the host"),
    "max_gathered_bytes": None,
    "clip_grad_norm": None,
    "allow_dense": None,
    "on_nonfinite": None,
    "check_replicas_every": (bool, "reads results on the host"),
    "telemetry": (bool, "measures residuals on the host"),
    "telemetry_every": None,
    "engine": (lambda engine: not works_on_devices(engine), "is made for arrays of the host"),
    "name": None,
    "timeout_s": None,
    "wire": None,
}
"""By common option: nothing, or which choices are staged, and why."""


def why_staged(configuration: Configuration, spec: TensorSpec) -> str:
    """Return the reason why a device's gradient is staged; empty if it stays there."""
    if not configuration.is_sparse(spec.shape, spec.numel):
        return "never compressed: Horovod is given tensors of the CPU"
    for kind in KINDS:
        part = getattr(configuration, kind)
        if part.needs_host:
            return f"{kind} {part.id!r} {part.needs_host}"
    for option, staged in OPTIONS.items():
        if staged is not None and staged[0](getattr(configuration, option)):
            return f"{option} {staged[1]}"
    return ""


def ways_of(
    named: Iterable[tuple[TensorSpec, torch.Tensor]],
    configuration: Configuration,
    *,
    can_stay: bool,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the paths of parameters' gradients, by name, and the reasons for staging.

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


def staying(kind: str) -> list[str]:
    """Return the ids of a kind's parts with which gradients stay on their device, by default."""
    return [id for id in PARTS[kind] if not _needs_host(PARTS[kind], id)]


def _needs_host(registry: Registry, id: str) -> str:
    declared: str | property = registry.get(id).needs_host
    needs: str = registry.create(id).needs_host if isinstance(declared, property) else declared
    return needs


def in_words() -> str:
    """Return the parts with which gradients stay on their device."""
    return "; ".join(f"{kind} {', '.join(staying(kind))}" for kind in KINDS)
