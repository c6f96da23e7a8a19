"""The part of a step that waits until a bucket is full, or for devices: its passes, and the walks
that go on from them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np

from hvd_sparse.errors import NonFiniteGradient, SparseError
from hvd_sparse.step.devices.contract import Answer
from hvd_sparse.step.records import BucketRun, TensorStep
from hvd_sparse.step.rows import OutgoingRows
from hvd_sparse.step.shared import Shared


class BucketPasses(Shared):
    """Gives a bucket's passes to devices, and goes on with what they find, or with the gradients
    that they have copied to the host, or that were there and have waited for the others.
    """

    def begin_passes(self, bucket: BucketRun) -> None:
        """Begin a bucket's passes, and let what they find come to the host in one copy.

        Never raises: what cannot be begun here is begun by who reads its answer, and fails there.
        """
        if self.transactions.devices is None:  # all is here
            return
        answers: list[Answer] = []
        late = [each.late for each in bucket.begun]
        coming = [each for each in late if each is not None and not isinstance(each, np.ndarray)]
        for ticket in bucket.begun:
            if ticket.late is not None:
                continue
            if not self.transactions.is_current(ticket.position, ticket.run):
                continue  # the vectors are another step's by now
            if ticket.begun is None:
                continue
            _, moments, taking, _ = ticket.begun.accumulated
            answer = moments if taking is None else taking
            assert answer is not None
            answers.append(answer)
        with contextlib.suppress(Exception):
            bucket.delivery = self.transactions.devices.send(answers, coming)

    def go_on_with(self, bucket: BucketRun, rank: int, world_size: int) -> None:
        """Go on with the passes that were begun, and wait for these if need be.

        The carriers are gone: NaN or Inf shows as a frame that lacks, a failure in the message.
        """
        devices = self.transactions.devices
        if bucket.delivery is None:  # some member never came
            self.begin_passes(bucket)
        begun, bucket.begun = bucket.begun, []
        if devices is not None:
            for ticket in reversed(begun):  # behind the last one all others are here
                if ticket.late is not None:
                    with contextlib.suppress(Exception):  # its own walk fails by it
                        ticket.gradient()
                    break
        self._send_rows(bucket, begun, world_size)
        walk = partial(self._select, rank, world_size)
        left = [
            partial(self._walk, bucket, ticket, walk)
            for ticket in begun
            if ticket.late is not None or ticket.begun is not None
        ]
        if devices is not None:
            devices.together(left)
            return
        for each in left:
            each()

    def _send_rows(self, bucket: BucketRun, begun: list[TensorStep], world_size: int) -> None:
        """Send what the engine can in one call."""
        rows = OutgoingRows(self.pipeline, world_size)
        for ticket in begun:
            self._walk(bucket, ticket, rows.add)
        try:
            rows.send()
        except Exception as error:  # no memory for the frames
            for ticket in begun:
                if ticket.outgoing is None and ticket.error is None:
                    self._note(bucket, ticket, error)

    def _walk(
        self, bucket: BucketRun, ticket: TensorStep, walk: Callable[[TensorStep], None]
    ) -> None:
        """Take a tensor a part of its way; where that fails it is noted, for all ranks to learn."""
        try:
            if not self.transactions.is_current(ticket.position, ticket.run):
                raise self._why_left(ticket)
            walk(ticket)
        except Exception as error:
            self._note(bucket, ticket, error)

    def _note(self, bucket: BucketRun, ticket: TensorStep, error: Exception) -> None:
        """Note why nothing can be sent of a tensor."""
        ticket.late = ticket.begun = None
        if isinstance(error, NonFiniteGradient):
            self.note_nonfinite(ticket, error, dense=False)
        else:
            ticket.fail(error)
        if ticket.outgoing is not None:
            ticket.outgoing.frame = None
        else:
            del bucket.sending[ticket.position]

    def _select(self, rank: int, world_size: int, ticket: TensorStep) -> None:
        begun = ticket.begun
        gradient = ticket.gradient() if begun is None else begun.gradient
        ticket.late = ticket.begun = None
        ticket.outgoing = self.pipeline.send(
            ticket.state, gradient, rank, world_size,
            dense=False, parts=ticket.parts, begun=begun,
        )  # fmt: skip

    def _why_left(self, ticket: TensorStep) -> Exception:
        """Return why a tensor's step does not go on: it was taken back, or left behind."""
        left = SparseError(f"the next step of {ticket.key!r} began before this ended")
        return ticket.run.failure or left
