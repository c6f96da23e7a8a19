"""Chooses the device that sends messages, and lets a rank sleep until the exchanges' results
arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch.autograd import Variable

from hvd_sparse.collectives.contract import sleep_until
from hvd_sparse.collectives.horovod_torch import catch_up, why_not_on
from hvd_sparse.configuration import DEVICE_WIRE, HOST_WIRE
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.torch.arrays import is_on_device
from hvd_sparse.kernels.torch.vector import fetch

LONGEST_S = 1.0
PATIENCE = 4.0
"""Longest sleep, as a multiple of the time since the step's first gradient. The factor is above 1
because other ranks, for example on shared cores, may be slower than this rank."""
MOST_SKIPPED = 64
"""Largest number of steps without a sleep, after a sleep that reached its time limit. The number of
these steps is 1 after the first such sleep, and doubles after each further one in a row."""


def device_of_wire(choice: str, named: Sequence[tuple[str, torch.Tensor]]) -> torch.device | None:
    """Return the device from which messages are sent; None for the host. ``choice`` is the option
    ``wire``. Raises InvalidOption if ``choice`` is "device" and no device can be used."""
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
                f"tensor {name!r} is on {parameter.device}, but {first!r} is on {device}: give a "
                "compressor the parameters of one device"
            )
    return why_not_on(device)


def fetch_carrier(reduced: torch.Tensor) -> np.ndarray:
    if reduced.is_cpu:
        carrier: np.ndarray = reduced.numpy()
        return carrier
    catch_up(reduced.device)
    return fetch(reduced)


class LastGradientWait:
    """Sleeps after a step's last gradient until the results of the exchanges have arrived.
    Horovod's own wait polls, which takes time from other processes, for example data loaders.

    The results may never arrive during the sleep, because other ranks may be waiting for this rank
    in another collective. Therefore the sleep lasts at most ``PATIENCE`` times the time since the
    step's first gradient, and at most ``LONGEST_S`` seconds. After a sleep that reached this limit,
    the rank does not sleep in the next steps, up to ``MOST_SKIPPED`` of them.
    """

    def __init__(self) -> None:
        self._skipped = self._to_skip = 0

    def begin(self, is_done: Callable[[], bool], began_s: float) -> None:
        """Sleep at the end of the running backward pass, or at once if none is running. Called when
        Horovod has received the step's last tensor. The arguments are those of ``take``."""
        if torch._C._current_graph_task_id() < 0:
            self.take(is_done, began_s)
        else:
            Variable._execution_engine.queue_callback(partial(self.take, is_done, began_s))

    def take(self, is_done: Callable[[], bool], began_s: float) -> None:
        """Sleep until ``is_done()`` is true, or until the time limit. ``began_s`` is the
        ``time.monotonic`` of the step's first gradient."""
        if self._to_skip:
            self._to_skip -= 1
        elif sleep_until(is_done, min(LONGEST_S, PATIENCE * (time.monotonic() - began_s))):
            self._skipped = 0
        else:
            self._skipped = min(MOST_SKIPPED, max(1, 2 * self._skipped))
            self._to_skip = self._skipped
