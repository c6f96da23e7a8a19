"""The context of a running exchange: one bucket in one step, and its tensors.

An exchange never raises between its phases, because the other ranks would wait for a collective
that this rank never submits. ``guarded`` keeps an error, the remaining phases run with messages
that report it, and ``read`` or ``finish`` raises it at the end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.contract import AllToAll, Placement
from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.selectors.contract import Found, Selector
from hvd_sparse.types import Memo, Selection, TensorSpec
from hvd_sparse.wire.frame import decode_for
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

Part = tuple[slice, Union[np.ndarray, Selection]]
"""A range of a tensor, and the selection to add there, encoded or not."""


@dataclass(eq=False)
class Outgoing:
    """One tensor's contribution to one step: an encoded selection, or the whole vector.

    frame : uint8, the encoded selection; None on a dense step, and where the exchange encodes
    dense : the whole accumulated vector, flat; None on a sparse step
    norm : L2 norm of the residual, 0 unless telemetry is on; measured before the sent entries are
        removed if they are known only after the exchange
    found : the selection and its cost; None on a dense step, and where another rank selects
    accumulated : the vector to select from, until the exchange is over; for exchanges that sum
        first, the gradient
    observed : telemetry's squared L2 norms of the kept and of all accumulated entries, and the sum
        of the sent entries' staleness; None without telemetry, and until the sent entries are known
    surplus : on a device, the residual and the entries taken beyond the selection, if they are to
        be added back with the bucket's sums
    """

    frame: np.ndarray | None = None
    dense: np.ndarray | None = None
    entries: int = 0
    norm: float = 0.0
    found: Found | None = None
    accumulated: np.ndarray | None = None
    observed: tuple[float, float, int] | None = None
    surplus: tuple[np.ndarray, Selection] | None = None


class Arrival(NamedTuple):
    """The result of an exchange for one tensor.

    parts : selections to add up in this order, which is the same on all ranks
    left : entries to remove from this rank's residual; None if they were when they were sent
    returned : entries to add to this rank's residual, because they were not applied
    memo : state for this tensor's next exchange, the same on all ranks, JSON-serializable
    is_finite : False, on all ranks alike, if a partial sum has overflowed
    """

    parts: tuple[Part, ...]
    left: Selection | None = None
    returned: Selection | None = None
    memo: Memo = None
    is_finite: bool = True


BEYOND_RANGE = Arrival((), is_finite=False)
"""The arrival of a tensor whose sum is not finite on a rank, whose last message has no frame of
it."""


@dataclass(eq=False)
class Member:
    """One tensor of a bucket, in one step.

    position : index among the registered tensors
    part : the range of entries whose residual this rank keeps
    steps : completed steps
    selector, codec, density : those of this step
    memo : state left by the tensor's last exchange, the same on all ranks
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
        assert self.outgoing.found is not None
        return self.outgoing.found.selection

    @property
    def count(self) -> int:
        """k of the whole tensor."""
        assert self.density is not None
        return count_from_density(self.spec.numel, self.density)

    def decode(self, frame: np.ndarray, numel: int, kernels: Kernels) -> Selection:
        """Decode a frame that a rank sent for ``numel`` entries of this tensor; CorruptPayload if
        it does not fit."""
        return decode_for(self.spec.key, numel, self.spec.accumulator, self.codec, frame, kernels)


@dataclass(eq=False)
class ExchangeContext:
    """State and helpers of an exchange on one rank, for one bucket in one step.

    step : completed steps of the bucket's first tensor
    configuration : checksum of the configuration
    bucket, keys : number of the bucket and names of all tensors, for error messages
    members : the bucket's sparse tensors, by position
    errors : failures of this rank, as text
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
        """Keep an error between two phases until the last phase is over; one of this rank is also
        sent to the others in place of its entries."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            if not isinstance(error, PeerFailure):  # others report their own
                self.errors.append(f"{type(error).__name__}: {error}")

    def write(self, frames: Mapping[int, np.ndarray] | None = None) -> np.ndarray:
        """Return this rank's message, uint8: the frames by position, or its errors."""
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
        """Return the request for an alltoall with a separate message, or None, for each rank."""
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
        step, members = self.step & 0xFFFFFFFF, tuple(sorted(self.members))
        for message in messages:
            if (message.configuration, message.step, message.members) != (
                self.configuration,
                step,
                members,
            ):
                raise RankMismatch(
                    f"bucket {self.bucket}: rank {message.rank} is at step {message.step} with "
                    f"tensors {self._names(message.members)}, rank {self.rank} at step {step} with "
                    f"{self._names(members)}; all ranks must compress the same tensors at every "
                    "step, with the same options, and a collective must not deliver messages of "
                    "another step"
                )
        return messages

    def _names(self, members: Sequence[int]) -> list[str]:
        return [self.keys[i] if i < len(self.keys) else f"number {i}" for i in members]

    def finish(self) -> None:
        """Raise the kept error, if any, after the last phase."""
        if self.failure is not None:
            raise self.failure
