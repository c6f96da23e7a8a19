"""The part of a step that waits until a bucket is full, or for devices: its passes, and the walks
that go on from them."""

from __future__ import annotations

import contextlib
from functools import partial

import numpy as np

from hvd_sparse.errors import NonFiniteGradient, SparseError
from hvd_sparse.step.devices.contract import Answer, Devices
from hvd_sparse.step.loss_scale import unscaled
from hvd_sparse.step.records import BucketRun, Ticket
from hvd_sparse.step.shared import Shared

NO_GRADIENT = np.empty(0)


class InPlace:
    """A ``Late`` in the host's memory, which stays as it is until its bucket is full."""

    def __init__(self, gradient: np.ndarray) -> None:
        self._gradient = gradient

    def is_here(self) -> bool:
        return True

    def array(self) -> np.ndarray:
        return self._gradient


class DevicePasses:
    """Gives a bucket's passes to devices, and goes on with what they find, or with the gradients
    that they have copied to the host, or that were there and have waited for the others.

    shared : the tensors, their states and parts
    """

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    def begin(self, bucket: BucketRun) -> None:
        """Begin a bucket's passes, and let what they find come to the host in one copy.

        Never raises: what cannot be begun here is begun by who reads its answer, and fails there.
        """
        if self._devices is None:  # all is here
            return
        answers: list[Answer] = []
        late = [ticket.late for ticket in bucket.begun if ticket.late is not None]
        for ticket in bucket.begun:
            if ticket.late is not None:
                continue
            if self._why_left(ticket) is not None:  # the vectors are another step's by now
                continue
            assert ticket.outgoing is not None and ticket.outgoing.begun is not None
            accumulated = ticket.outgoing.begun.accumulated
            taking, moments = accumulated.taking, accumulated.moments
            answer = moments if taking is None else taking
            assert answer is not None
            answers.append(answer)
        with contextlib.suppress(Exception):
            bucket.delivery = self._devices.send(answers, late)

    def go_on(self, bucket: BucketRun, rank: int, world_size: int) -> None:
        """Go on with the passes that were begun, and wait for these if need be.

        The carriers are gone: NaN or Inf shows as a frame that lacks, a failure in the message.
        """
        if bucket.delivery is None:  # some member never came
            self.begin(bucket)
        begun, bucket.begun = bucket.begun, []
        for ticket in reversed(begun):  # behind the last one all others are here
            if ticket.late is not None:
                with contextlib.suppress(Exception):  # its own walk fails by it
                    ticket.late.array()
                break
        if self._devices is None:
            for ticket in begun:
                self._select(bucket, ticket, rank, world_size)
        else:
            self._devices.together(
                [partial(self._select, bucket, ticket, rank, world_size) for ticket in begun]
            )

    @property
    def _devices(self) -> Devices | None:
        return self._shared.transactions.devices

    def _select(self, bucket: BucketRun, ticket: Ticket, rank: int, world_size: int) -> None:
        shared = self._shared
        state, position, sent = ticket.state, ticket.position, ticket.outgoing
        assert state is not None and position is not None and sent is not None
        begun, late, ticket.outgoing, ticket.late = sent.begun, ticket.late, None, None
        gradient = NO_GRADIENT if begun is None else begun.gradient
        try:
            left = self._why_left(ticket)
            if left is not None:
                raise left
            if late is not None:
                gradient = unscaled(late.array(), ticket.scale)
            ticket.outgoing = shared.pipeline.send(
                state, gradient, rank, world_size,
                dense=False, parts=ticket.parts, begun=begun,
            )  # fmt: skip
        except NonFiniteGradient as error:
            shared.note_nonfinite(ticket, gradient, error, dense=False)
            if ticket.outgoing is not None:
                ticket.outgoing.frame = None
        except Exception as error:
            ticket.fail(error)
        if ticket.outgoing is None:
            del bucket.sending[position]

    def _why_left(self, ticket: Ticket) -> Exception | None:
        """Return why a tensor's step does not go on: it was taken back, or left behind."""
        run, position = ticket.run, ticket.position
        assert position is not None
        if run.failure is not None:
            return run.failure
        if not self._shared.transactions.is_current(position, run):
            return SparseError(f"the next step of {ticket.key!r} began before this ended")
        return None
