"""The means of an exchange: one bucket in one step.

An exchange never raises between its phases, where the other ranks would wait for what this one does
not submit. An error is kept (``guarded``), the remaining phases run with messages that tell of it,
and ``read`` or ``finish`` raises at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hvd_sparse.collectives.contract import AllToAll
from hvd_sparse.collectives.topology import Placement
from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.exchanges.members import Member
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.selectors.contract import Selector
from hvd_sparse.wire.message import (
    OVERHEAD_BYTES,
    Message,
    split_messages_of,
    write_error,
    write_message,
)

MOST_BYTES = 2**31 - 1
"""Bytes that one collective can move: MPI and Horovod count with 32 bits."""

NO_BYTES = np.empty(0, np.uint8)


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
