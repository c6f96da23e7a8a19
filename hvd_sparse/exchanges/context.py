"""One bucket on its way: what an exchange is given of a step, and what it brings back.

An exchange never raises between its phases, where the other ranks would wait for what this one does
not submit: what goes wrong is kept (``guarded``), the remaining phases run with messages that say
so, and ``read`` or ``finish`` raises at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.core.step.pipeline import Pipeline
from hvd_sparse.core.step.records import StepRun, Ticket
from hvd_sparse.core.step.tensor_state import Outgoing, Part, TensorState
from hvd_sparse.core.wire.message import Message, split_messages_of, write_error, write_message
from hvd_sparse.errors import CorruptPayload, PeerFailure, RankMismatch
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.types import Selection, TensorSpec


@dataclass(frozen=True)
class Arrival:
    """What an exchange brought for one tensor.

    Attributes
    ----------
    parts : what to add up, in this order, which is the same on all ranks
    left : what of this rank's own entries is accounted for, and is no longer kept back; None where
        sending settled it
    returned : what this rank is to keep back of what it was sent or could not pass on; added to the
        residual
    memo : what this tensor's next exchange is told, the same on all ranks, JSON-able
    """

    parts: tuple[Part, ...]
    left: Selection | None = None
    returned: Selection | None = None
    memo: Any = None


@dataclass(eq=False)
class Item:
    """One tensor of a bucket.

    Attributes
    ----------
    spec : of the whole tensor
    state : what this rank keeps of it
    ticket : of this step
    selector : at the density of this step
    density : asked for at this step, or None
    codec : at the density of this step
    """

    spec: TensorSpec
    state: TensorState
    ticket: Ticket
    selector: Selector
    density: float | None
    codec: Codec

    @property
    def outgoing(self) -> Outgoing:
        return self.ticket.sent

    @property
    def selection(self) -> Selection:
        """What this rank has selected."""
        assert self.outgoing.found is not None
        return self.outgoing.found.selection

    @property
    def count(self) -> int:
        """k, of the whole tensor."""
        assert self.density is not None
        return count_from_density(self.spec.numel, self.density)

    def checked(self, selection: Selection, numel: int) -> Selection:
        """A decoded selection; CorruptPayload where it is not of so long a part of this tensor."""
        if selection.numel != numel or selection.values.dtype != self.spec.accumulator:
            raise CorruptPayload(
                f"tensor {self.spec.key!r}: a payload for {numel} entries of "
                f"{self.spec.accumulator} is for "
                f"{selection.numel} of {selection.values.dtype}"
            )
        return selection


@dataclass(eq=False)
class Parcel:
    """What an exchange is run with, on one rank.

    Attributes
    ----------
    rank, world_size : in the process set
    step : completed steps of the bucket's first tensor
    configuration : its checksum
    items : the tensors that are sent sparse, by position
    keys : names of all tensors, for messages
    errors : what went wrong on this rank, in words
    """

    rank: int
    world_size: int
    step: int
    configuration: int
    bucket: int
    items: dict[int, Item]
    pipeline: Pipeline
    run: StepRun
    keys: Sequence[str]
    errors: list[str]
    placement: Placement | None = None
    failure: Exception | None = field(default=None)

    @property
    def is_lost(self) -> bool:
        """Whether some rank failed: the remaining phases carry nothing."""
        return bool(self.errors) or self.failure is not None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Between two phases: keep an error until the last phase is over.  Those of this rank go
        into its messages."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            if not isinstance(error, PeerFailure):  # of others' failures they tell themselves
                self.errors.append(f"{type(error).__name__}: {error}")

    def write(self, frames: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
        """uint8: a message with these frames, or with what went wrong on this rank."""
        if self.errors:
            return write_error(self.rank, self.step, self.configuration, "; ".join(self.errors))
        given = {} if frames is None or self.is_lost else frames
        return write_message(self.rank, self.step, self.configuration, given, members=self.items)

    def read(self, joined: np.ndarray, senders: Sequence[int] | None = None) -> list[Message]:
        """The messages of all ranks, or of those named, as one collective joined them.

        Raises
        ------
        PeerFailure : some rank says what went wrong there
        RankMismatch : a rank runs another configuration or step, or sent other tensors
        CorruptPayload : these are no messages
        """
        messages = split_messages_of(joined, range(self.world_size) if senders is None else senders)
        failed = [
            f"rank {message.rank}: {message.error}"
            for message in messages
            if message.error is not None
        ]
        if failed:
            raise PeerFailure("compressing failed on " + "; on ".join(failed))
        first = messages[0] if senders is None else self._own()
        for message in messages:
            self._compare(message, first)
        return messages

    def _own(self) -> Message:
        return Message(
            self.rank,
            self.step & 0xFFFFFFFF,
            self.configuration,
            tuple(sorted(self.items)),
            (),
            None,
        )

    def _compare(self, message: Message, first: Message) -> None:
        if (message.configuration, message.step, message.members) != (
            first.configuration,
            first.step,
            first.members,
        ):
            raise RankMismatch(
                f"bucket {self.bucket}: rank {message.rank} is at step {message.step} with tensors "
                f"{self._names(message.members)}, rank {first.rank} at step {first.step} with "
                f"{self._names(first.members)}; all ranks must compress the same tensors at every "
                "step, with the same options"
            )

    def _names(self, members: Sequence[int]) -> list[str]:
        return [self.keys[i] if i < len(self.keys) else f"number {i}" for i in members]

    def finish(self) -> None:
        """After the last phase: raise what went wrong before."""
        if self.failure is not None:
            raise self.failure

    def send(self, position: int, gradient: np.ndarray) -> np.ndarray:
        """The walk's first half on what the exchange has summed up: the frame to send.

        A step that was taken back meanwhile must not write over what the next has begun.
        """
        if self.run.failure is not None:
            raise self.run.failure
        item = self.items[position]
        outgoing = self.pipeline.send(
            item.state, gradient, self.rank, self.world_size, dense=False, is_summed=True
        )
        item.ticket.outgoing = outgoing
        assert outgoing.frame is not None
        return outgoing.frame
