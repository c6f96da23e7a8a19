"""Records of one step: its buckets, its tensors, and their outcome."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Union

import numpy as np

from hvd_sparse.exchanges.context import Arrival, Outgoing
from hvd_sparse.kernels.contract import Aim, Moments, Taking, Zeros
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.step_parts import StepParts
from hvd_sparse.wire.carrier import CarrierLayout, CarrierReport, carrier_layout

MOST_ERRORS = 3
"""Number of errors of one rank that a message quotes in one step; further errors are counted."""
OF_ONE_RANK = carrier_layout(np.float64, 1)

Answer = Union[Taking, Moments]
"""The result of a pass on a device; reading an attribute waits for the device."""
Counted = tuple[str, Union[Outgoing, None], int, int]
"""A tensor's completed step, for the counters: its name, its contribution (None on a dense step),
the number of entries whose residual this rank keeps, and the bytes of its dense vector."""


class Late(Protocol):
    """A flat gradient that a device copies to the host; ``array`` waits for the copy."""

    def array(self) -> np.ndarray: ...


class Devices(Protocol):
    def zeros_of(self, position: int) -> Zeros | None:
        """Return the function that allocates vectors on a tensor's device; None for the host."""

    def send(self, answers: Sequence[Answer], late: Sequence[Late]) -> Callable[[], bool]:
        """Launch a bucket's passes, and copy their results to the host, without a wait; return a
        function that returns whether all copies have arrived."""

    def together(self, walks: Sequence[Callable[[], None]]) -> None:
        """Run independent functions, one per tensor, and join their reads from the device."""


@dataclass(eq=False)
class BucketRun:
    """One bucket in one step; tensors are named by position. Members in ``begun`` are selected from
    when the bucket is full. ``has_arrived`` returns whether copies from devices have arrived.
    ``summed`` has the factor and an upper bound of each sum, once a result was requested."""

    index: int
    members: tuple[int, ...]
    entered: set[int] = field(default_factory=set)
    sending: dict[int, TensorStep] = field(default_factory=dict)
    begun: list[TensorStep] = field(default_factory=list)
    has_arrived: Callable[[], bool] | None = None
    errors: list[str] = field(default_factory=list)
    is_exchanged: bool = False
    began_s: float = 0.0
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    summed: dict[int, tuple[float, float]] | None = None


@dataclass(eq=False)
class StepRun:
    """One step of all tensors, by position. With TensorFlow, ``received`` has the numbers of the
    tickets whose exchanges are over, and ``is_raising`` means that a thread is about to raise the
    failure. After ``is_closed``, the next ``compress`` begins another step; after ``is_driven``,
    all exchanges are over."""

    buckets: dict[int, BucketRun] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    counted: list[Counted] = field(default_factory=list)
    received: set[int] = field(default_factory=set)
    is_raising: bool = False
    is_closed: bool = False
    is_driven: bool = False
    is_finite: bool = True
    failure: Exception | None = None
    began_s: float = field(default_factory=time.monotonic)

    def open(self, index: int, members: tuple[int, ...]) -> BucketRun:
        return self.buckets.setdefault(index, BucketRun(index, members))

    def keeps(self, position: int) -> bool:
        """Return whether the step of a tensor has succeeded so far."""
        return position in self.completed and self.failure is None and self.is_finite


class Ticket:
    """One gradient in one step: the output of ``compress`` and input of ``decompress``. This base
    class serves gradients of unregistered tensors, which have no ``position``, and gradients that
    Horovod reduces as they are. The frontend uses ``extra``."""

    position: int | None = None
    state: TensorState | None = None
    bucket: BucketRun | None = None
    error: Exception | None = None
    checksum: int | None = None
    report: CarrierReport | None = None
    extra: object = None

    def __init__(
        self, run: StepRun, key: str, layout: CarrierLayout = OF_ONE_RANK, scale: float = 1.0
    ) -> None:
        self.run, self.key, self.layout, self.scale = run, key, layout, scale


class TensorStep(Ticket):
    """One compressed tensor in one step.

    outgoing : this rank's contribution; None until the selection is made, and after a failure
    late : the scaled gradient, until ``fetch`` has read it
    gradient, accumulated : the unscaled gradient and the result of the pass over it, which may
        still run on a device, until the selection is made
    aim, norm : if selection is over a group, the pass's aim, and with telemetry the L2 norm
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
    norm = 0.0
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
        """Return the unscaled gradient; wait for its copy."""
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
    """Merge the buckets of several tensors into one, and assign it to their tickets; unregistered
    tensors contribute only their errors."""
    own = [ticket.bucket for ticket in tickets if ticket.bucket is not None]
    if len(tickets) == 1:
        return own[0] if own else BucketRun(-1, ())
    members = tuple(sorted(position for bucket in own for position in bucket.members))
    bucket = BucketRun(own[0].index if own else -1, members)
    for each in own:
        bucket.entered |= each.entered
        bucket.sending |= each.sending
        bucket.errors += each.errors
    others = {id(ticket.run): ticket.run for ticket in tickets[1:]}
    others.pop(id(tickets[0].run), None)
    for run in others.values():
        bucket.errors += run.errors
    for ticket in tickets:
        if ticket.bucket is not None:
            ticket.bucket = bucket
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
