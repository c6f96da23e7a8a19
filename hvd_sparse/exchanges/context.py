"""The context of a running exchange: one bucket in one step.

An exchange never raises between its phases, because the other ranks would wait for a collective
that this rank never submits. ``guarded`` keeps an error, the remaining phases run with messages
that report it, and ``read`` or ``finish`` raises it at the end.
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
    split_messages,
    write_error,
    write_message,
)

MOST_BYTES = 2**31 - 1
"""Upper bound on the bytes of one collective, because MPI and Horovod count with 32 bits."""

NO_BYTES = np.empty(0, np.uint8)


@dataclass(eq=False)
class ExchangeContext:
    """State and helpers of an exchange on one rank, for one bucket in one step.

    rank, world_size : this rank and the number of ranks, in the process set
    step : completed steps of the bucket's first tensor
    configuration : checksum of the configuration
    bucket : number of the bucket, for error messages
    members : the bucket's sparse tensors, by position
    keys : names of all tensors, for error messages
    errors : failures of this rank, as text
    kernels : the engine's kernels
    select : function of a position and a tensor's summed gradient that selects from the sum and
        returns the encoded frame; for exchanges that sum first
    selector : the compressor's selector; members hold theirs at the density of the step
    placement : the node of every rank; None for exchanges that do not use it
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
        """Whether a rank has failed; then the remaining phases carry no entries."""
        return bool(self.errors) or self.failure is not None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Catch an error between two phases and keep it until the last phase is over.

        An error of this rank is also sent to the others in place of its entries.
        """
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            if not isinstance(error, PeerFailure):  # others report their own
                self.errors.append(f"{type(error).__name__}: {error}")

    def write(self, frames: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
        """Return this rank's message, uint8: the frames by position, or its errors if it has
        any."""
        if self.errors:
            return write_error(self.rank, self.step, self.configuration, "; ".join(self.errors))
        # After a failure of another rank the message is empty, but all ranks still take part.
        given = {} if frames is None or self.failure is not None else frames
        # Count first, so that a message over the limit is never allocated.
        total = OVERHEAD_BYTES + 4 * len(self.members)
        for frame in given.values():
            total += frame.size
        if total > MOST_BYTES:
            self._note_length(total)
            return self.write()
        return write_message(self.rank, self.step, self.configuration, given, members=self.members)

    def to_each(self, frames: Sequence[Mapping[int, np.ndarray] | None]) -> AllToAll:
        """Return the request for an alltoall with a separate message, or None, for each rank.

        If the messages together exceed ``MOST_BYTES``, an error is sent in their place.
        """
        messages = [NO_BYTES if each is None else self.write(each) for each in frames]
        total = sum(message.size for message in messages)
        if total > MOST_BYTES:
            self._note_length(total)
        if self.errors:  # also those found while writing: every receiver gets the same errors
            messages = [NO_BYTES if each is None else self.write() for each in frames]
        splits = np.array([message.size for message in messages], np.int32)
        return AllToAll(np.concatenate(messages), splits)

    def _note_length(self, total: int) -> None:
        keys = [self.keys[position] for position in self.members]
        more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
        self.errors.append(
            f"UnsupportedInput: the messages of {', '.join(map(repr, keys[:3]))}{more} come to "
            f"{total} bytes in one collective, which moves at most {MOST_BYTES}: send fewer "
            "entries (density, max_gathered_bytes), put fewer tensors in a group (groups), or "
            "split the tensor; exchange hierarchical sends whole gradients inside a node"
        )

    def read(self, joined: np.ndarray, senders: Sequence[int] | None = None) -> list[Message]:
        """Split the result of a collective into the senders' messages (None: of all ranks), and
        check them.

        Raises
        ------
        PeerFailure : a rank reports an error
        RankMismatch : a rank has another configuration, step or set of tensors
        CorruptPayload : the bytes are not valid messages
        """
        # Check for failures first, because the message of a failed rank lists no members.
        messages = split_messages(joined, range(self.world_size) if senders is None else senders)
        failed = []
        for message in messages:
            if message.error is not None:
                failed.append(f"rank {message.rank}: {message.error}")
        if failed:
            raise PeerFailure("compressing failed on " + "; on ".join(failed))
        # Compare with this rank's own step: stale messages agree with each other.
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
            "the same options, and a collective must not deliver messages of another step"
        )

    def _names(self, members: Sequence[int]) -> list[str]:
        return [self.keys[i] if i < len(self.keys) else f"number {i}" for i in members]

    def finish(self) -> None:
        """Raise the kept error, if any, after the last phase."""
        if self.failure is not None:
            raise self.failure
