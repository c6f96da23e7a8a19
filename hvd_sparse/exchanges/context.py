"""Input and output of an exchange: one bucket in one step.

An exchange never raises between its phases, where the other ranks would wait for what this one does
not submit. An error is kept (``guarded``), the remaining phases run with messages that tell of it,
and ``read`` or ``finish`` raises at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.contract import AllToAll
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.core.kernels.contract import Aim, Kernels, Moments
from hvd_sparse.core.wire.frame import decode_for
from hvd_sparse.core.wire.message import (
    OVERHEAD_BYTES,
    Message,
    split_messages_of,
    write_error,
    write_message,
)
from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.memories.contract import Accumulated
from hvd_sparse.selectors.contract import Found, Selector
from hvd_sparse.types import Memo, Selection, TensorSpec

Part = tuple[slice, Union[np.ndarray, Selection]]
"""A piece of a tensor, and the selection to add there, encoded or not."""


class Observed(NamedTuple):
    """Norms and waiting times that telemetry takes of one tensor's step.

    Attributes
    ----------
    kept_squared, accumulated_squared : squared L2 norms of what was not sent, and of what there was
        to send
    waited : steps since they were last sent, or since the first one, added up over the entries that
        are sent
    """

    kept_squared: float
    accumulated_squared: float
    waited: int


class Begun(NamedTuple):
    """A pass that a device was given, before the host knows what it finds.

    Attributes
    ----------
    gradient : that is added, unscaled
    accumulated : what the pass makes; reading what it found waits for the device
    """

    gradient: np.ndarray
    accumulated: Accumulated


@dataclass(eq=False)
class Outgoing:
    """The content that one tensor sends in one step: a frame, or everything.

    Attributes
    ----------
    frame : uint8, the encoded selection; None on a dense step, and where the exchange encodes
    dense : everything accumulated, flat; None on a sparse step
    entries : how many entries are sent
    norm : L2 norm of the residual, 0 unless telemetry is on; before anything leaves, where that is
        known only later
    found : the selection and its cost; None on a dense step, and where another rank selects
    accumulated : the vector to select from, until that and the exchange are over; or, where the
        exchange sums first, the gradient
    moments : of the accumulated vector, where the selection waits for the group's other tensors
        and its pass had no aim
    observed : telemetry's finds; None without it, and where what leaves is not known yet
    begun : the pass on a device; nothing else is known then.  None on the host
    aim, taken : the group's aim while the selection waits, and the entries that the pass took out
        of ``accumulated``; None where it had no aim, or they were too many
    surplus : on a device, the vector of what is kept back and entries that the pass took too much,
        which go back to it with the bucket's sums; None where there are none, or they went at once
    """

    frame: np.ndarray | None
    dense: np.ndarray | None
    entries: int
    norm: float
    found: Found | None
    accumulated: np.ndarray | None = None
    moments: Moments | None = None
    observed: Observed | None = None
    begun: Begun | None = None
    aim: Aim | None = None
    taken: Selection | None = None
    surplus: tuple[np.ndarray, Selection] | None = None


class Arrival(NamedTuple):
    """The result of an exchange for one tensor.

    Attributes
    ----------
    parts : pieces to add up, in this order, which is the same on all ranks
    left : the entries of this rank that are accounted for, and no longer kept back; None where
        sending settled it
    returned : entries that this rank keeps back, of those it was sent or could not pass on; added
        to the residual
    memo : state for this tensor's next exchange, the same on all ranks, JSON-able
    is_finite : False where a sum on the way left the range of floats, which all ranks learn; then
        there is nothing else
    """

    parts: tuple[Part, ...]
    left: Selection | None = None
    returned: Selection | None = None
    memo: Memo = None
    is_finite: bool = True


BEYOND_RANGE = Arrival((), is_finite=False)
"""The arrival of a tensor of which some rank could pass nothing on, as it is not finite there.

That rank's message of the last phase has no frame for it."""

MOST_BYTES = 2**31 - 1
"""Bytes that one collective can move: MPI and Horovod count with 32 bits."""

NO_BYTES = np.empty(0, np.uint8)


@dataclass(eq=False)
class Member:
    """One tensor of a bucket, in one step.

    Attributes
    ----------
    position : among the registered tensors
    spec : of the whole tensor
    part : the entries that this rank keeps back for
    steps : completed steps
    selector, codec : at the density of this step
    density : asked for at this step, or None
    outgoing : the content that this rank sends
    memo : state that the tensor's last exchange left, the same on all ranks
    """

    position: int
    spec: TensorSpec
    part: slice
    steps: int
    selector: Selector
    codec: Codec
    density: float | None
    outgoing: Outgoing
    memo: Memo

    @property
    def selection(self) -> Selection:
        """Return the entries that this rank has selected."""
        assert self.outgoing.found is not None
        return self.outgoing.found.selection

    @property
    def count(self) -> int:
        """Return k, of the whole tensor."""
        assert self.density is not None
        return count_from_density(self.spec.numel, self.density)

    def decode(self, frame: np.ndarray, numel: int, kernels: Kernels) -> Selection:
        """Return the selection of a frame that a rank sent.

        Raises
        ------
        CorruptPayload : the frame is not of ``numel`` entries of this tensor
        """
        return decode_for(self.spec.key, numel, self.spec.accumulator, self.codec, frame, kernels)


@dataclass(eq=False)
class ExchangeContext:
    """The means of an exchange, on one rank.

    Attributes
    ----------
    rank, world_size : in the process set
    step : completed steps of the bucket's first tensor
    configuration : its checksum
    bucket : its number, for errors
    members : the tensors that are sent sparse, by position
    keys : names of all tensors, for errors
    errors : failures of this rank, in words
    kernels : of the engine
    select : selects from the sum of a tensor, and returns the frame to send (``sums_first``)
    selector : of the compressor, for its properties; members have theirs at the step's density
    placement : the node of every rank, for exchanges to which it matters
    failure : the first error that was kept
    """

    rank: int
    world_size: int
    step: int
    configuration: int
    bucket: int
    members: dict[int, Member]
    keys: Sequence[str]
    errors: list[str]
    kernels: Kernels
    select: Callable[[int, np.ndarray], np.ndarray]
    selector: Selector
    placement: Placement | None = None
    failure: Exception | None = None

    @property
    def is_lost(self) -> bool:
        """Tell whether some rank failed: the remaining phases carry nothing then."""
        return bool(self.errors) or self.failure is not None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Keep an error between two phases until the last one is over.

        Errors of this rank go into its messages.
        """
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            if not isinstance(error, PeerFailure):  # the other ranks tell of their own failures
                self.errors.append(f"{type(error).__name__}: {error}")

    def write(self, frames: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
        """Return a message, uint8, with these frames or with this rank's errors.

        Parameters
        ----------
        frames : encoded selections by the member's position; None for a message without
        """
        if self.errors:  # in the place of entries, so that every rank learns of it
            return write_error(self.rank, self.step, self.configuration, "; ".join(self.errors))
        # Once some rank has failed nothing is worth sending, but every rank still takes part.
        given = {} if frames is None or self.failure is not None else frames
        # Counted before the message is put together: one that is too long need not be allocated.
        total = OVERHEAD_BYTES + 4 * len(self.members)
        for frame in given.values():
            total += frame.size
        if total > MOST_BYTES:
            self._note_length(total)
            return self.write()
        return write_message(self.rank, self.step, self.configuration, given, members=self.members)

    def to_each(self, frames: Sequence[Mapping[int, np.ndarray] | None]) -> AllToAll:
        """Return the request to send every rank a message of its own.

        Where the messages are too long for one collective, all ranks are told so instead.

        Parameters
        ----------
        frames : of the message to each rank; None where a rank gets none at all
        """
        messages = [NO_BYTES if each is None else self.write(each) for each in frames]
        total = sum(message.size for message in messages)
        if total > MOST_BYTES:
            self._note_length(total)
        if self.errors:  # of some, or met while they were written: all are told the same
            messages = [NO_BYTES if each is None else self.write() for each in frames]
        # The collective delivers message r to rank r by these lengths.
        splits = np.array([message.size for message in messages], np.int32)
        return AllToAll(np.concatenate(messages), splits)

    def _note_length(self, total: int) -> None:
        """Note an error: these are more bytes than a count of 32 bits can hold."""
        keys = [self.keys[position] for position in self.members]
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        self.errors.append(
            f"UnsupportedInput: the messages of {', '.join(map(repr, keys[:3]))}{more} come to "
            f"{total} bytes in one collective, which moves at most {MOST_BYTES}: send fewer "
            "entries (density, max_gathered_bytes), fewer tensors together (groups), or split the "
            "tensor; exchange hierarchical moves whole gradients inside a node"
        )

    def read(self, joined: np.ndarray, senders: Sequence[int] | None = None) -> list[Message]:
        """Return the messages of all ranks, or of those named, as one collective joined them.

        Parameters
        ----------
        joined : uint8, the result of the collective
        senders : the ranks whose messages it holds, in order; None for all

        Raises
        ------
        PeerFailure : some rank tells of an error
        RankMismatch : a rank runs another configuration or step, or sent other tensors
        CorruptPayload : these are no messages
        """
        # A failure comes before any mismatch: a rank that failed sends no members to compare.
        messages = split_messages_of(joined, range(self.world_size) if senders is None else senders)
        failed = []
        for message in messages:
            if message.error is not None:
                failed.append(f"rank {message.rank}: {message.error}")
        if failed:
            raise PeerFailure("compressing failed on " + "; on ".join(failed))
        # Compared with this rank's own step, never with another message: old ones agree.
        own = (self.configuration, self.step & 0xFFFFFFFF, tuple(sorted(self.members)))
        for message in messages:
            if (message.configuration, message.step, message.members) != own:
                self._refuse(message)
        return messages

    def _refuse(self, message: Message) -> None:
        step, members = self.step & 0xFFFFFFFF, sorted(self.members)
        raise RankMismatch(
            f"bucket {self.bucket}: rank {message.rank} is at step {message.step} with tensors "
            f"{self._names(message.members)}, rank {self.rank} at step {step} with "
            f"{self._names(members)}; all ranks must compress the same tensors at every step, with "
            "the same options, and what moves bytes must not deliver those of another step"
        )

    def _names(self, members: Sequence[int]) -> list[str]:
        return [self.keys[i] if i < len(self.keys) else f"number {i}" for i in members]

    def finish(self) -> None:
        """Raise, after the last phase, the error that was kept."""
        if self.failure is not None:
            raise self.failure
