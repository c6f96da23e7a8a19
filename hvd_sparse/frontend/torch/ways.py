"""Decides where each gradient is compressed: on the host, on its device, or staged.

A gradient on an accelerator stays on its device if all parts and options support this. Then its
residual and its result are there too, and only the selected entries leave the device. Selectors,
memories, codecs and exchanges declare why they need the host (``needs_host``); ``STAGES`` lists the
options that need the host.

Otherwise the gradient is staged: copied to pinned memory of the host, and its result copied back.
The host waits for the copies of all gradients of a bucket together, when it makes the bucket's
message. In dense steps, and with exchanges of several phases, it waits for each gradient's copy.
It never waits for the copies of results.
"""

from __future__ import annotations

import logging
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

import torch

from hvd_sparse.configuration import Configuration
from hvd_sparse.frontend.torch.arrays import is_on_device
from hvd_sparse.kernels.engines import works_on_devices
from hvd_sparse.kernels.torch.vector import can_stop
from hvd_sparse.types import Option, TensorSpec

logger = logging.getLogger("hvd_sparse")

HOST, DEVICE, STAGED = "host", "device", "staged"

KINDS = ("selector", "memory", "codec", "exchange")
"""The kinds of parts that process a tensor's vectors, and have ``needs_host``."""

STAGES: Mapping[str, tuple[Callable[[Option], bool], str]] = {
    "rollback": (operator.not_, "False updates the residual in place on the host"),
    "select_over": (lambda chosen: chosen == "group", "'group' joins vectors on the host"),
    "check_replicas_every": (bool, "reads results on the host"),
    "telemetry": (bool, "measures residuals on the host"),
    "engine": (lambda engine: not works_on_devices(engine), "works on arrays on the host"),
}
"""Common options that can cause gradients to be staged. Each has a function that returns whether a
value of the option does this, and the reason."""


def why_staged(configuration: Configuration, spec: TensorSpec) -> str:
    """Return the reason why a tensor's gradient is staged; empty if it stays on its device."""
    if not configuration.is_sparse(spec.shape, spec.numel):
        return "they are never compressed, and Horovod gets them on the CPU"
    for kind in KINDS:
        part = getattr(configuration, kind)
        if part.needs_host:
            return f"{kind} {part.id!r} {part.needs_host}"
    for option, (stages, why) in STAGES.items():
        if stages(getattr(configuration, option)):
            return f"{option} {why}"
    return ""


def ways_of(
    named: Iterable[tuple[TensorSpec, torch.Tensor]],
    configuration: Configuration,
    *,
    can_stay: bool,
) -> tuple[dict[str, str], dict[str, str]]:
    """Return two dictionaries by tensor name: where each gradient is compressed (``HOST``,
    ``DEVICE`` or ``STAGED``), and for each staged gradient the reason. ``can_stay`` means that the
    frontend can leave gradients on their device."""
    ways, reasons = {}, {}
    for spec, parameter in named:
        ways[spec.key] = HOST
        if not is_on_device(parameter):
            continue
        reason = why_staged(configuration, spec)
        if not can_stay:
            reason = "DistributedDataParallel keeps gradients in its own buckets"
        ways[spec.key] = STAGED if reason else DEVICE
        if reason:
            reasons[spec.key] = reason
    return ways, reasons


def say_ways(name: str, stay: int, reasons: Iterable[str]) -> None:
    told = "; ".join(f"{count} because {why}" for why, count in Counter(reasons).items())
    logger.info(
        "%s: %d gradients stay on their device%s",
        name,
        stay,
        f"; others are copied to the host and back: {told}" if told else "",
    )
    if stay and not can_stop():
        logger.info(
            "%s: each of them waits for its device separately, because greenlet is not "
            "installed: pip install 'hvd-sparse[fast]'",
            name,
        )
