"""Records of one step: what its buckets and tensors send, and the outcome."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hvd_sparse.exchanges.members import Arrival, Begun, Observed, Outgoing, Waiting
from hvd_sparse.step.devices.contract import Delivery, Late
from hvd_sparse.step.loss_scale import unscaled
from hvd_sparse.step.tensor_state import TensorState
from hvd_sparse.step_parts import StepParts
from hvd_sparse.wire.carrier import CarrierLayout, CarrierReport, carrier_layout


@dataclass(eq=False)
class BucketRun:
    """One bucket in one step: what its members send, then what all ranks sent.

    Attributes
    ----------
    index : of the bucket
    members : positions of its tensors
    entered : those that this step has come to
    sending : those that are sent sparse, by position
    begun : those whose passes a device was given, or whose gradients are late, until
        their selections are made
    delivery : all that on its way to the host, once all members have entered
    errors : what went wrong on this rank, in words for the others
    is_exchanged : its exchange has begun
    began_s : when, where anybody asks
    arrivals : what the exchange brought, by position
    summed : what was added up with others', by position: the factor, and a bound of its magnitudes;
        None until the first of its tensors asks
    """

    index: int
    members: tuple[int, ...]
    entered: set[int] = field(default_factory=set)
    sending: dict[int, TensorStep] = field(default_factory=dict)
    begun: list[TensorStep] = field(default_factory=list)
    delivery: Delivery | None = None
    errors: list[str] = field(default_factory=list)
    is_exchanged: bool = False
    began_s: float = 0.0
    arrivals: dict[int, Arrival] = field(default_factory=dict)
    summed: dict[int, tuple[float, float]] | None = None


@dataclass(eq=False)
class StepRun:
    """One step of all tensors: from its first ``compress`` to the next step's.

    Attributes
    ----------
    buckets : those that have begun, by index
    entered, completed : positions of tensors that were handed over, and whose results are there
    errors : of gradients that no registered tensor stands for, in words for the other ranks
    counted : what was counted of each tensor, to be taken back where the step fails
    received : tickets whose phases are over, by number (TensorFlow)
    is_raising : a thread is about to raise its failure (TensorFlow)
    is_closed : the next ``compress`` begins another step
    is_driven : all of its exchanges are over
    is_finite : no rank had NaN or Inf in it
    failure : why it was taken back
    began_s : when its first tensor came, by ``time.monotonic``
    """

    buckets: dict[int, BucketRun] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    counted: list[tuple[str, dict[str, int], Observed | None]] = field(default_factory=list)
    received: set[int] = field(default_factory=set)
    is_raising: bool = False
    is_closed: bool = False
    is_driven: bool = False
    is_finite: bool = True
    failure: Exception | None = None
    began_s: float = field(default_factory=time.monotonic)

    def open(self, index: int, members: tuple[int, ...]) -> BucketRun:
        """Return a bucket of this step, begun if it was not."""
        return self.buckets.setdefault(index, BucketRun(index, members))


MOST_ERRORS = 3
"""Upper bound on the errors of one rank that a message quotes in one step; the rest are counted."""
OF_ONE_RANK = carrier_layout(np.float64, 1)


class Ticket:
    """One gradient in one step; what ``compress`` hands to ``decompress``.

    This one is of a gradient that no registered tensor stands for, or that Horovod reduces by
    itself.

    Attributes
    ----------
    run : the step
    key : of the tensor, for messages
    layout : of its carrier
    position : of the tensor; None for a gradient that no registered tensor stands for
    state : of a tensor whose memory has something to do; else None
    bucket : None
    error : why nothing can be sent
    scale : of the loss
    checksum : in its carrier; None where nothing is compared
    report : what all ranks' carriers say, once that was read (``Receiver.report``)
    extra : the frontend's
    """

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

    Attributes
    ----------
    position, state, parts : of the tensor, and what its step is made with
    bucket : that it travels in
    outgoing : what this rank sends; None where that could not be made, or is made later
    late : the gradient that is taken in once its bucket is full, or what brings it from a device;
        until its pass is made
    begun : the pass, until it is selected from
    waiting : what was accumulated, until the tensor's group is selected from
    is_finite : this rank's gradient has no NaN or Inf
    out : where its result goes, flat; None until that is made
    """

    position: int
    state: TensorState
    bucket: BucketRun
    outgoing: Outgoing | None = None
    late: np.ndarray | Late | None = None
    begun: Begun | None = None
    waiting: Waiting | None = None
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

    def gradient(self) -> np.ndarray:
        """Return the gradient that is late, unscaled."""
        late = self.late
        assert late is not None
        gradient = late if isinstance(late, np.ndarray) else late.array()
        return gradient if self.scale == 1.0 else unscaled(gradient, self.scale)

    def fail(self, error: Exception) -> None:
        """Record why nothing can be sent, and report it in the bucket's message."""
        self.error, self.outgoing = error, None
        self.bucket.errors.append(in_words(error))


def joined(tickets: Sequence[Ticket]) -> BucketRun:
    """Return the bucket of tensors that travel together in this step, made of those of their own;
    their tickets are in it.

    What no registered tensor stands for brings only what went wrong with it.
    """
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


def in_words(error: Exception) -> str:
    """Return an error as text for the other ranks."""
    return f"{type(error).__name__}: {error}"


def told_once(errors: Sequence[str]) -> list[str]:
    """Return every distinct error once, at most the first few."""
    different = list(dict.fromkeys(errors))
    hidden = len(different) - MOST_ERRORS
    return different[:MOST_ERRORS] + ([f"and {hidden} more errors"] if hidden > 0 else [])
