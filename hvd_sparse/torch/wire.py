"""The wire: whether messages travel from the host's memory or from the gradients' device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hvd_sparse.collectives.horovod_device import catch_up, why_not_on
from hvd_sparse.configuration import DEVICE_WIRE, HOST_WIRE
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.torch.staging import is_on_device
from hvd_sparse.kernels.torch.vector import fetch
from hvd_sparse.untyped import Optimizer


def device_of_wire(choice: str, named: Sequence[tuple[str, torch.Tensor]]) -> torch.device | None:
    """Return the device that messages travel from; None for the host.

    Parameters
    ----------
    choice : the option ``wire``
    named : pairs of name and parameter

    Raises
    ------
    InvalidOption : the device was asked for, and cannot be it
    """
    if choice == HOST_WIRE or not named:
        return None
    reason = _why_not(named)
    if reason is None:
        return named[0][1].device
    if choice == DEVICE_WIRE:
        raise InvalidOption(f"wire is {DEVICE_WIRE!r}, and {reason}; or leave wire out")
    return None


def _why_not(named: Sequence[tuple[str, torch.Tensor]]) -> str | None:
    first, device = named[0][0], named[0][1].device
    for name, parameter in named:
        if not is_on_device(parameter):
            return (
                f"tensor {name!r} is on {parameter.device}: move the model to the accelerator "
                "before the compressor is made"
            )
        if parameter.device != device:
            return (
                f"tensor {name!r} is on {parameter.device}, {first!r} on {device}: give a "
                "compressor the parameters of one device"
            )
    return why_not_on(device)


def has_groups(caller: Optimizer) -> bool:
    """Tell whether Horovod's optimizer may reduce carriers in one group with dense gradients.

    Such a group's tensors must lie on one device.

    Parameters
    ----------
    caller : the optimizer; None where something else calls
    """
    return caller is None or getattr(caller, "_groups", None) is not None


def fetch_carrier(reduced: torch.Tensor) -> np.ndarray:
    """Return a carrier that Horovod has reduced on a device, on the host."""
    catch_up(reduced.device)
    return fetch(reduced)
