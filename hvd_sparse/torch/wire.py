"""The tensors for Horovod's allreduce: the memory of messages, dense gradients, the last wait."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from hvd_sparse.collectives import sleep_until
from hvd_sparse.collectives.horovod_torch import catch_up, why_not_on
from hvd_sparse.configuration import DEVICE_WIRE, HOST_WIRE
from hvd_sparse.errors import InvalidOption
from hvd_sparse.frontend.torch.arrays import flatten, is_on_device, like, to_host, unflatten
from hvd_sparse.kernels.torch.vector import fetch
from hvd_sparse.step.driver import NOTHING, Driver
from hvd_sparse.step.records import Ticket
from hvd_sparse.step.step import Step
from hvd_sparse.torch.gradients import Changes

LONGEST_S = 1.0
PATIENCE = 4.0
"""Times as long as the step's gradients took to come: other ranks may share this one's cores."""
MOST_SKIPPED = 64
"""Steps without a rest after one that was in vain; 1 after the first, then twice as many each
time."""


@dataclass(eq=False)
class DenseTicket:
    """A tensor that Horovod reduces as it is; without a ticket if all are dense and no state is
    kept."""

    gradient: torch.Tensor
    key: str
    ticket: Ticket | None


class DenseWay:
    """The way of gradients that Horovod reduces by itself, on their device if ``stays``."""

    def __init__(
        self,
        step: Step,
        driver: Driver,
        changes: Changes,
        parameters: list[torch.Tensor],
        *,
        stays: bool,
    ) -> None:
        self._step, self._driver, self._changes = step, driver, changes
        self._parameters, self._stays = parameters, stays
        self._finishes = step.configuration.memory.finishes

    def leave(
        self, gradient: torch.Tensor, position: int, scale: float
    ) -> tuple[torch.Tensor, Ticket]:
        """Enter a gradient into the step, and return the tensor for Horovod to reduce."""
        wire = as_horovod_wants(gradient, stays=self._stays)
        parameter = self._parameters[position]
        ticket = self._step.enter_dense(position, scale, wire.nbytes)
        if wire is not parameter.grad:  # else Horovod sums in place, and nothing is overwritten
            self._changes.give(position, ticket.key, parameter, ticket.run)
        return wire, ticket

    def pass_on(
        self, gradient: torch.Tensor, position: int, way: str
    ) -> tuple[torch.Tensor, DenseTicket]:
        """Return the tensor for Horovod to reduce if all tensors are "dense" or "fp16"."""
        is_wide = gradient.dtype in (torch.float32, torch.float64)
        narrowed = gradient.half() if way == "fp16" and is_wide else gradient
        wire = as_horovod_wants(narrowed, stays=self._stays)
        self._step.stats.count_bytes("dense", wire.nbytes)
        parameter, key = self._parameters[position], self._step.specs[position].key
        if wire is not parameter.grad:
            self._changes.give(position, key, parameter, None)
        return wire, DenseTicket(gradient, key, None)

    def finish(self, reduced: torch.Tensor, ctx: DenseTicket) -> torch.Tensor:
        ticket = ctx.ticket
        if not reduced.is_cpu:
            catch_up(reduced.device)
        if ticket is None:
            return like(reduced, ctx.gradient)
        if ticket.error is not None:
            self._driver.refuse(ticket)
        assert ticket.position is not None
        if not (reduced.is_cpu or self._finishes) and bool(reduced.isfinite().all()):
            return like(reduced, ctx.gradient)  # as finish_dense does, without the way to the host
        spec = self._step.specs[ticket.position]
        flat, parameter = flatten(reduced, spec), NOTHING
        if self._finishes:
            parameter = flatten(self._parameters[ticket.position], spec)
        finished = self._step.finish_dense(ticket, flat, parameter)
        if finished is flat:
            gradient = ctx.gradient
            is_same = reduced.dtype == gradient.dtype and gradient.is_cpu
            if is_same and gradient.is_contiguous():
                return reduced
            return like(reduced, gradient)
        return unflatten(finished, ctx.gradient)


def as_horovod_wants(gradient: torch.Tensor, *, stays: bool) -> torch.Tensor:
    """Return the gradient, contiguous, as float32 for bfloat16, which Horovod does not know, and on
    the CPU unless it ``stays``."""
    dense = gradient.float() if gradient.dtype == torch.bfloat16 else gradient
    return dense.contiguous() if stays else to_host(dense.contiguous())


def device_of_wire(choice: str, named: Sequence[tuple[str, torch.Tensor]]) -> torch.device | None:
    """Return the device that messages travel from, None for the host; InvalidOption if it cannot
    be."""
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


def fetch_carrier(reduced: torch.Tensor) -> np.ndarray:
    if reduced.is_cpu:
        carrier: np.ndarray = reduced.numpy()
        return carrier
    catch_up(reduced.device)
    return fetch(reduced)


class LastGradientWait:
    """Sleeps at a step's last gradient until the other ranks have sent theirs.

    Horovod's own wait polls, and takes time from other processes on the core, for example other
    ranks or data loaders. But other ranks may wait for this one in another collective. So a rest
    is not much longer than the step's gradients took to come, and after one that was in vain the
    next steps have none.
    """

    def __init__(self) -> None:
        self._skipped = self._to_skip = 0

    def take(self, is_done: Callable[[], bool], began_s: float) -> None:
        """Sleep until the other ranks have come as far, or until the time limit.

        began_s : time of the step's first gradient, by ``time.monotonic``
        """
        if self._to_skip:
            self._to_skip -= 1
        elif sleep_until(is_done, min(LONGEST_S, PATIENCE * (time.monotonic() - began_s))):
            self._skipped = 0
        else:
            self._skipped = min(MOST_SKIPPED, max(1, 2 * self._skipped))
            self._to_skip = self._skipped
