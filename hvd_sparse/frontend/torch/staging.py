"""Gradients on an accelerator: copied to pinned memory of the host, and the result back.

Everything between is as for a gradient on the CPU, so it has the same bits.  The host waits for the
gradients of a bucket at once, where its message is made; for one that runs dense, and with
exchanges of several phases, when it comes.  Nothing waits for the way back.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import torch

from hvd_sparse.kernels.torch.together import can_stop
from hvd_sparse.kernels.torch.vector import fetch, upload

logger = logging.getLogger("hvd_sparse")


def is_on_device(tensor: torch.Tensor) -> bool:
    return not tensor.is_cpu and tensor.device.type != "meta"


def accelerator() -> str | None:
    """Return the type of torch's accelerator here, or None without one or before torch 2.6."""
    if not hasattr(torch, "accelerator"):
        return None
    device = torch.accelerator.current_accelerator(check_available=True)
    return None if device is None else str(device.type)


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same entries on the CPU; itself where it is there."""
    return torch.from_numpy(fetch(tensor.detach())) if is_on_device(tensor) else tensor


def to_device(dense: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the CPU on the gradient's device; itself where that is the CPU."""
    if gradient.device == dense.device:
        return dense
    return upload(dense.numpy(), gradient.device)


def write_back(flat: np.ndarray, gradient: torch.Tensor) -> bool:
    """Write the result into a device gradient's own memory if it fits, to save an allocation."""
    kind = torch.float64 if flat.dtype == np.float64 else torch.float32
    if not is_on_device(gradient) or gradient.dtype != kind or not gradient.is_contiguous():
        return False
    gradient.detach().view(-1).copy_(upload(flat, gradient.device))
    return True


@lru_cache(maxsize=1)  # once a process
def say_experimental(device: str) -> None:
    """Warn that gradients on an accelerator are experimental."""
    logger.warning(
        "gradients are on %s: experimental, tested on a pretend device and by compilation only; "
        "stats()['ways'] tells which stay there, and which are copied to the host and back",
        device,
    )


def say_ways(name: str, stay: int, reasons: Iterable[str]) -> None:
    """Log how many gradients stay on their device, and the reasons of those that do not."""
    told = "; ".join(f"{count} as {why}" for why, count in Counter(reasons).items())
    logger.info(
        "%s: %d gradients stay on their device%s",
        name,
        stay,
        f", and are copied to the host and back: {told}" if told else "",
    )
    if stay and not can_stop():
        logger.info(
            "%s: each of them waits for its device by itself, as greenlet is not installed: "
            "pip install 'hvd-sparse[fast]'",
            name,
        )
