"""The context of an exchange, which runs in one step for one bucket (tensors that share a message).

An exchange is a sequence of collectives (phases). It never raises an error between two phases,
because other ranks would wait for a collective that this rank never submits. ``guarded`` keeps an
error, later phases report the error to other ranks, and after the last phase ``read`` or ``finish``
raises it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Union

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.collectives.contract import MOST_BYTES, Placement, Request
from hvd_sparse.errors import PeerFailure, RankMismatch
from hvd_sparse.kernels.contract import Kernels
from hvd_sparse.memories.contract import Release
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

NO_BYTES = np.empty(0, np.uint8)

Part = tuple[slice, Union[np.ndarray, Selection]]
"""A range of a tensor, and the selection to add in this range, as an encoded frame or decoded."""


@dataclass(eq=False)
class Outgoing:
    """One tensor's contribution to one step: an encoded selection, or the whole vector.

    frame : the encoded selection, uint8; None on a dense step, or if ``Exchange.run`` encodes it
    dense : the whole accumulated vector, flat; None on a sparse step
    entries : number of sent entries on a sparse step
    found : the selection, and how it was made; None on a dense step, and if another rank selects
    accumulated : the accumulated vector, or the gradient for exchanges that sum first; None if the
        exchange does not need it
    observed : for telemetry, a tuple of the squared L2 norm of the unsent entries, the squared L2
        norm of the accumulated vector, and the sum of the sent entries' ages in steps. None without
        telemetry, and until the sent entries are known
    release : only for exchanges that settle later: the parts of entries to send; None to send whole
        entries
    surplus : on an accelerator, a tuple of the accumulated vector and the entries that were taken
        out of it but not selected. When the bucket's sums are written, these entries are put back
        into the vector
    """

    frame: np.ndarray | None = None
    dense: np.ndarray | None = None
    entries: int = 0
    found: Found | None = None
    accumulated: np.ndarray | None = None
    observed: tuple[float, float, int] | None = None
    release: Release | None = None
    surplus: tuple[np.ndarray, Selection] | None = None


class Arrival(NamedTuple):
    """The result of an exchange for one tensor.

    parts : the selections to add up, in an order that is the same on all ranks
    left : entries to remove from this rank's residual; None if sent entries were removed before the
        exchange
    returned : entries to add to this rank's residual, because they were not applied; None if there
        are none
    memo : state for this tensor's next exchange, the same on all ranks, JSON-serializable
    is_finite : False, on all ranks, if a gradient or a partial sum has NaN or Inf on any rank
    """

    parts: tuple[Part, ...]
    left: Selection | None = None
    returned: Selection | None = None
    memo: Memo = None
    is_finite: bool = True


BEYOND_RANGE = Arrival((), is_finite=False)
"""Arrival if a gradient or sum is not finite on a rank. All ranks notice it by a missing frame."""


@dataclass(eq=False)
class Member:
    """One tensor of a bucket, in one step.

    position : number of the tensor in the order of registration, from 0
    part : the range of entries whose residual this rank keeps: all entries, unless the exchange
        divides residuals among ranks
    steps : number of the tensor's completed steps
    selector, codec, density : the selector, the codec and the density of this step
    outgoing : this rank's contribution to the step
    memo : state that the tensor's last exchange returned, the same on all ranks
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
    def vector(self) -> np.ndarray:
        assert self.outgoing.accumulated is not None
        return self.outgoing.accumulated

    @property
    def count(self) -> int:
        """k, the number of entries of the whole tensor that should be sent."""
        assert self.density is not None
        return count_from_density(self.spec.numel, self.density)

    def decode(self, frame: np.ndarray, numel: int, kernels: Kernels) -> Selection:
        """Decode a frame from another rank, for ``numel`` entries of this tensor. Raises
        CorruptPayload if the frame has another size, dtype or codec."""
        return decode_for(self.spec.key, numel, self.spec.accumulator, self.codec, frame, kernels)


@dataclass(eq=False)
class ExchangeContext:
    """State and helpers of an exchange on one rank, for one bucket in one step.

    step : largest number of completed steps among the bucket's tensors
    configuration : checksum of the configuration
    bucket : number of the bucket, for error messages
    members : the bucket's tensors that are not sent dense in this step, by position (``Member``)
    keys : names of all registered tensors, for error messages
    errors : this rank's own errors, as text for the other ranks
    select : only for exchanges that sum first: a function of a position and a summed gradient,
        which selects entries of the gradient and returns them as an encoded frame
    selector : the compressor's selector; the members' selectors have the density of the step
    placement : the node of every rank; None for exchanges that do not use it
    counts_together : True if ``MOST_BYTES`` limits the sum of all ranks' messages, False if it
        limits each message
    failure : the first error that ``guarded`` kept
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
    counts_together: bool = True
    failure: Exception | None = None

    @property
    def is_lost(self) -> bool:
        """Whether this rank or another has failed. The remaining phases then send no entries."""
        return bool(self.errors) or self.failure is not None

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Catch an error in the ``with`` block, and keep it until ``finish`` raises it after the
        last phase. If the error is this rank's own, its next messages report it to the other
        ranks."""
        try:
            yield
        except Exception as error:
            self.failure = self.failure or error
            # A failed rank reports its error itself, and no later ones, which may follow from it.
            if not isinstance(error, PeerFailure) and not self.errors:
                self.errors.append(f"{type(error).__name__}: {error}")

    def write(
        self, frames: Mapping[int, np.ndarray] | None = None, senders: int | None = None
    ) -> np.ndarray:
        """Return this rank's message for the next collective, uint8. If this rank has errors, the
        message has their text. Otherwise the message has ``frames``, given by tensor position, or
        no frames if another rank has failed.

        ``senders`` is the number of ranks from which each rank receives frames in this collective;
        None stands for all ranks. The length of their messages together is limited. It is estimated
        from this rank's message, because no rank knows the lengths of the others.
        """
        if self.errors:
            return write_error(self.rank, self.step, self.configuration, "; ".join(self.errors))
        given = {} if frames is None or self.failure is not None else frames
        # Add up the lengths first, so that a message above the limit is not allocated.
        total = OVERHEAD_BYTES + 4 * len(self.members)
        for frame in given.values():
            total += frame.size
        if self.counts_together:
            total *= self.world_size if senders is None else senders
        if total > MOST_BYTES:
            self._note_length(total)
            return self.write()
        return write_message(self.rank, self.step, self.configuration, given, members=self.members)

    def to_each(self, frames: Sequence[Mapping[int, np.ndarray] | None]) -> Request:
        """Return the request for an alltoall. ``frames`` has an item for each rank: the frames to
        send to it, by tensor position, or None to send it no bytes."""
        # Each receiver gets messages from as many ranks as this rank sends messages to.
        count = sum(each is not None for each in frames)
        messages = [NO_BYTES if each is None else self.write(each, count) for each in frames]
        if self.errors:  # perhaps new since the first ``write``; all receivers get them
            messages = [NO_BYTES if each is None else self.write() for each in frames]
        splits = np.array([message.size for message in messages], np.int32)
        return Request("alltoall", np.concatenate(messages), splits)

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
        """Return the senders' messages in the result of a collective, after checking them.
        ``senders`` is a list of ranks; None stands for all ranks.

        Raises
        ------
        PeerFailure : a rank reports an error
        RankMismatch : a rank has another configuration, step or set of tensors
        CorruptPayload : the bytes are not valid messages
        """
        # Look for errors first, because a message with an error lists no members.
        messages = split_messages(joined, range(self.world_size) if senders is None else senders)
        failed = []
        for message in messages:
            if message.error is not None:
                failed.append(f"rank {message.rank}: {message.error}")
        if failed:
            raise PeerFailure("compressing failed on " + "; on ".join(failed))
        # Compare with this rank's own step, because messages of an old step agree with each other.
        step, members = self.step & 0xFFFFFFFF, tuple(sorted(self.members))
        mine = self.configuration, step, members
        for message in messages:
            if (message.configuration, message.step, message.members) != mine:
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
        """Raise the error that ``guarded`` kept, if there is one. Exchanges call this after the
        last phase."""
        if self.failure is not None:
            raise self.failure
