"""The records of one step: what its buckets and tensors send, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hvd_sparse.core.step.stats import Observed
from hvd_sparse.core.step.tensor_state import Outgoing
from hvd_sparse.core.wire.carrier import CarrierLayout, CarrierReport, carrier_layout

if TYPE_CHECKING:
    from hvd_sparse.exchanges.context import Arrival


@dataclass(eq=False)
class BucketRun:
    """One bucket in one step: what its members send, then what all ranks sent."""

    index: int
    members: tuple[int, ...]
    entered: set[int] = field(default_factory=set)
    sending: dict[int, Ticket] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    is_exchanged: bool = False
    began_s: float = 0.0
    arrivals: dict[int, Arrival] = field(default_factory=dict)

    @property
    def is_full(self) -> bool:
        return len(self.entered) == len(self.members)


@dataclass(eq=False)
class StepRun:
    """One step: from its first ``compress`` to the next step's."""

    buckets: dict[int, BucketRun] = field(default_factory=dict)
    entered: set[int] = field(default_factory=set)
    completed: set[int] = field(default_factory=set)
    errors: list[str] = field(default_factory=list)
    counted: list[tuple[str, dict[str, int]]] = field(default_factory=list)
    observed: list[tuple[str, Observed, int]] = field(default_factory=list)
    received: set[int] = field(default_factory=set)
    is_raising: bool = False
    is_closed: bool = False
    is_finite: bool = True
    failure: Exception | None = None


@dataclass(eq=False)
class Ticket:
    """One tensor in one step; what ``compress`` hands to ``decompress``."""

    run: StepRun
    key: str
    layout: CarrierLayout = field(default_factory=lambda: carrier_layout(np.float64, 1))
    position: int | None = None
    bucket: BucketRun | None = None
    outgoing: Outgoing | None = None
    error: Exception | None = None
    scale: float = 1.0
    is_finite: bool = True
    extra: object = None
    _report: CarrierReport | None = field(default=None, init=False, repr=False)

    def report(self, reduced: np.ndarray) -> CarrierReport:
        """What all ranks' carriers say, at the start of what Horovod made of them; read once.
        Errors: ``CarrierLayout.read``."""
        if self._report is None:
            self._report = self.layout.read(reduced[: self.layout.size], self.key)
        return self._report

    @property
    def sent(self) -> Outgoing:
        """What this rank sends, where it could be made."""
        assert self.outgoing is not None
        return self.outgoing

    @property
    def is_waiting(self) -> bool:
        """Whether what was accumulated has not been selected from yet."""
        return self.outgoing is not None and self.outgoing.accumulated is not None


def joined(tickets: Sequence[Ticket]) -> BucketRun:
    """The bucket of tensors that travel together in this step, made of those of their own; their
    tickets are in it.

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
    for run in {
        id(ticket.run): ticket.run for ticket in tickets[1:] if ticket.run is not tickets[0].run
    }.values():
        bucket.errors += run.errors
    for ticket in tickets:
        if ticket.bucket is not None:
            ticket.bucket = bucket
    return bucket


def in_words(error: Exception) -> str:
    """As the other ranks are told of it."""
    return f"{type(error).__name__}: {error}"
