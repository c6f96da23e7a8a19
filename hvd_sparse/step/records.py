"""Records of one step: one ``StepRun``, a ``BucketRun`` for each bucket, and a ``Ticket`` for each
gradient. The tensors of a bucket share a message."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from hvd_sparse.collectives.contract import Request
from hvd_sparse.configuration import StepParts
from hvd_sparse.exchanges.context import Arrival, Outgoing
from hvd_sparse.exchanges.contract import Conversation
from hvd_sparse.kernels.contract import Aim, Zeros
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.types import Value
from hvd_sparse.wire.carrier import CarrierLayout, CarrierReport, carrier_layout

MOST_ERRORS = 3
"""Number of a rank's errors in a step that its message quotes; further errors are only counted."""
OF_ONE_RANK = carrier_layout(np.float64, 1)


class Late(Protocol):
    """A flat gradient that is being copied from a device to the host. ``array`` waits until the
    copy is complete, and returns it."""

    def array(self) -> np.ndarray: ...


class Devices(Protocol):
    def zeros_of(self, position: int) -> Zeros | None:
        """Return the function that allocates zeros on a tensor's device; None if the tensor is on
        the host."""

    def send(self, answers: Sequence[object], late: Sequence[Late]) -> Callable[[], bool]:
        """Launch a bucket's passes (the kernels that add gradients to residuals), and begin to copy
        their results, ``answers`` (``Taking`` or ``Moments``), and the gradients ``late`` to the
        host. Return at once, with a function that returns whether all copies are complete."""

    def together(self, walks: Sequence[Callable[[], None]]) -> None:
        """Run independent functions, one for each tensor. When all of them wait for values from a
        device, one copy brings all these values, because each copy costs a wait."""


@dataclass(eq=False)
class BucketRun:
    """One bucket in one step. Tensors are given by their positions.

    members : all tensors of the bucket
    entered, sending : members for which ``compress`` was called, and those that send a selection
    begun : tensors from which entries are selected only when the bucket is full
    has_arrived : function that returns whether all copies from devices are complete; None before
        they are started
    conversation : the bucket's exchange; None before it begins
    phase : number of the exchange's collectives that the driver has started
    arrivals : what the exchange returned for each tensor; empty until the exchange is over
    summed : the factor, read from a carrier (``wire.carrier``), by which the sums were multiplied;
        and upper bounds of the sums' magnitudes, by position. None until the sums are written
    """

    index: int
    members: tuple[int, ...]
    entered: set[int] = field(default_factory=set)
    sending: dict[int, TensorStep] = field(default_factory=dict)
    begun: list[TensorStep] = field(default_factory=list)
    has_arrived: Callable[[], bool] | None = None
    errors: list[str] = field(default_factory=list)
    conversation: Conversation | None = None
    phase: int = 0
    began_s: float = 0.0
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    summed: tuple[float, dict[int, float]] | None = None

    def advance(self, received: Value) -> Request | None:
        """Pass the result of the last collective to the exchange; None before the first. Return the
        request for the next collective. After the last one, set ``arrivals`` and return None."""
        assert self.conversation is not None
        try:
            return self.conversation.send(received)
        except StopIteration as stop:
            self.arrivals = stop.value
            return None


@dataclass(eq=False)
class StepRun:
    """One step of all tensors. Tensors are given by their positions.

    entered, completed : tensors whose gradients have arrived, and those whose results are returned
    errors : errors of this rank about unregistered tensors
    is_reported : a carrier or a message reports one of these errors to the other ranks
    received, is_raising : with TensorFlow, the numbers of the tickets whose exchanges are over, and
        whether a thread is about to raise the failure
    nonfinite : tensors whose result is NaN, because of which the step has no effect
    is_closed : the next call of ``compress`` begins another step
    is_driven : all exchanges are over
    """

    buckets: dict[int, BucketRun] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    received: set[int] = field(default_factory=set)
    is_reported: bool = False
    is_raising: bool = False
    is_closed: bool = False
    is_driven: bool = False
    nonfinite: set[int] = field(default_factory=set)
    failure: Exception | None = None
    began_s: float = field(default_factory=time.monotonic)

    def open(self, index: int, members: tuple[int, ...]) -> BucketRun:
        return self.buckets.setdefault(index, BucketRun(index, members))

    @property
    def is_finite(self) -> bool:
        return not self.nonfinite

    def keeps(self, position: int) -> bool:
        return position in self.completed and self.failure is None and self.is_finite


class Ticket:
    """The record of one gradient in one step, returned by ``compress`` for ``decompress``. This
    base class is for gradients of unregistered tensors, which have no ``position``, and for
    gradients that Horovod reduces uncompressed (``has_carrier`` is then false). Frontends store
    their own data in ``extra``."""

    position: int | None = None
    state: TensorState | None = None
    bucket: BucketRun | None = None
    error: Exception | None = None
    checksum: int | None = None
    report: CarrierReport | None = None
    has_carrier = True
    extra: Value = None

    def __init__(
        self, run: StepRun, key: str, layout: CarrierLayout = OF_ONE_RANK, scale: float = 1.0
    ) -> None:
        self.run, self.key, self.layout, self.scale = run, key, layout, scale


class TensorStep(Ticket):
    """One compressed tensor in one step.

    outgoing : this rank's contribution; None until the selection is made, and after a failure
    late : the gradient, multiplied by the loss scale, until ``fetch`` reads it
    gradient : the gradient without the loss scale, until the selection is made
    accumulated : residual + gradient, until the selection is made; a device may still compute it
    aim : if selection is over a group, the threshold at which entries were extracted while the
        gradient was added to the residual
    out : the flat array for the result, until the result is returned
    """

    position: int
    state: TensorState
    bucket: BucketRun
    outgoing: Outgoing | None = None
    late: np.ndarray | Late | None = None
    gradient: np.ndarray | None = None
    accumulated: Accumulated | None = None
    aim: Aim | None = None
    is_finite = True
    out: np.ndarray | None = None

    def __init__(
        self,
        run: StepRun,
        layout: CarrierLayout,
        position: int,
        bucket: BucketRun,
        state: TensorState,
        parts: StepParts,
        scale: float = 1.0,
    ) -> None:
        self.run, self.key, self.layout, self.scale = run, state.spec.key, layout, scale
        self.position, self.bucket, self.state, self.parts = position, bucket, state, parts

    def fetch(self) -> np.ndarray:
        late = self.late
        if late is not None:
            gradient = late if isinstance(late, np.ndarray) else late.array()
            self.gradient = gradient if self.scale == 1.0 else unscaled(gradient, self.scale)
            self.late = None
        assert self.gradient is not None
        return self.gradient

    def fail(self, error: Exception) -> None:
        self.error, self.outgoing = error, None
        self.bucket.errors.append(in_words(error))


def joined(tickets: Sequence[Ticket]) -> BucketRun:
    """Return one bucket, merged from the tickets' buckets. A ticket of an unregistered tensor has
    no bucket; instead, the errors of its step are added to the merged bucket."""
    if len(tickets) == 1:
        return tickets[0].bucket or BucketRun(-1, ())
    own = [ticket.bucket for ticket in tickets if ticket.bucket is not None]
    members = tuple(sorted(position for bucket in own for position in bucket.members))
    bucket = BucketRun(own[0].index if own else -1, members)
    for each in own:
        bucket.entered |= each.entered
        bucket.sending |= each.sending
        bucket.begun += each.begun
        bucket.errors += each.errors
    others = {id(ticket.run): ticket.run for ticket in tickets[1:]}
    others.pop(id(tickets[0].run), None)
    for run in others.values():
        bucket.errors += run.errors
    for ticket in tickets:
        if ticket.bucket is not None:
            ticket.run.buckets[ticket.bucket.index] = ticket.bucket = bucket
    return bucket


def unscaled(gradient: np.ndarray, scale: float) -> np.ndarray:
    with np.errstate(over="ignore"):  # checked when the gradient is accumulated
        plain: np.ndarray = gradient / gradient.dtype.type(scale)
    return plain


def in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def distinct(errors: Sequence[str]) -> list[str]:
    different = list(dict.fromkeys(errors))
    hidden = len(different) - MOST_ERRORS
    return different[:MOST_ERRORS] + ([f"and {hidden} more errors"] if hidden > 0 else [])
