"""Rows: one call of compiled code turns the gradients of a bucket's tensors into frames (encoded
selections).

Each tensor is a row of the table that the call reads. The pipeline (``step.pipeline``) processes
the tensors that the call does not support. Both give the same results bit for bit.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.exchanges.context import Outgoing
from hvd_sparse.kernels.contract import Taking
from hvd_sparse.kernels.optimizers import operands
from hvd_sparse.kernels.rows import PLAIN, SENT, address, sent_row
from hvd_sparse.memories.contract import Accumulated, Addition, Release
from hvd_sparse.selectors._aim import SMALLEST, margin_of
from hvd_sparse.selectors.contract import Found
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.records import TensorStep
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import HEADER_BYTES, frame_head

ONE_PASS = Found(Selection.empty(0), is_one_pass=True, is_taken=True)
"""Tells the counters (``step.stats``) how the entries of a row were found."""
DONE = ("start", "nbytes", "sent", "threshold", "margin")
WORD_BYTES = 8
"""Alignment of the frames in bytes, so that numpy can view their indices and values."""
SPARE_BYTES = 24
"""Extra bytes of a frame: for the magnitude that codec ``sign_mean`` sends, and for padding."""


class OutgoingRows:
    """The rows of one bucket: for each tensor, the arguments of the compiled code that makes its
    frame (encoded selection). All rows have the dtype and the codec of the first row."""

    def __init__(self, pipeline: Pipeline) -> None:
        is_bounded = pipeline.configuration.max_gathered_bytes is not None
        is_left = is_bounded or pipeline.looks_first
        self._most_in_row = 0 if is_left else pipeline.kernels.most_in_row
        self._pipeline = pipeline
        self._tickets: list[tuple[TensorStep, Addition]] = []
        self._rows: list[bytes] = []
        self._releases: list[Release] = []  # kept alive, because rows have addresses only
        self._nbytes, self._codec, self._dtype = 0, cast(Codec, None), np.dtype(np.float32)
        self._began_s = pipeline.spans.now()

    def add(self, ticket: TensorStep) -> None:
        """Add a row for a tensor if compiled code supports its memory, selector and codec.
        Otherwise do nothing; the pipeline then processes the tensor."""
        state, parts = ticket.state, ticket.parts
        spec, selector, codec = state.spec, parts.selector, parts.codec
        if (
            ticket.accumulated is not None
            or not parts.row_body
            or state.is_on_device
            or state.selected_in != spec.key
            or spec.numel > self._most_in_row
            or (self._rows and (spec.accumulator != self._dtype or codec is not self._codec))
        ):
            return
        band = selector.band(spec.numel)
        aim = selector.aim(spec.numel, state.threshold, state.memo)
        # The threshold must be a normal number: some threads flush subnormal ones to zero.
        if band is None or aim is None or (not parts.is_exact and aim.threshold < SMALLEST):
            return
        kernels = self._pipeline.kernels
        given = state.memory.prepare(ticket.fetch(), kernels, aim)
        if not isinstance(given, Addition) or given.aim is None:
            ticket.accumulated = given.run(kernels)
            return
        released = 0, 0, 0, 0
        if (release := state.memory.release) is not None:
            self._releases.append(release)
            sent_in, step, shares = release
            released = address(sent_in), address(shares), shares.size, step
        vectors, numbers = (), ()  # type: tuple[np.ndarray, ...], tuple[float | np.floating, ...]
        if given.direction is not None:
            vectors, numbers = operands(given.direction, spec.accumulator)
        move = len(vectors) + len(numbers)
        vectors = given.gradient, given.residual, given.out, *vectors
        self._rows.append(
            sent_row(len(vectors), len(numbers)).pack(
                move, *map(address, vectors), *numbers, spec.numel,
                aim.threshold, aim.capacity, band.least, band.wanted, band.most,
                margin_of(state.memo), self._nbytes, *released,
            )
        )  # fmt: skip
        self._tickets.append((ticket, given))
        self._codec, self._dtype = codec, spec.accumulator
        nbytes = HEADER_BYTES + band.most * (4 + self._dtype.itemsize) + SPARE_BYTES
        self._nbytes += -(-nbytes // WORD_BYTES) * WORD_BYTES

    def send(self) -> None:
        """Run compiled code on all rows, and store the resulting frames in the tickets. Tensors for
        which a threshold must be searched are left to the pipeline."""
        if not self._rows:
            return
        table = np.frombuffer(bytearray().join(self._rows), SENT)  # writable
        dtype, body = self._dtype, self._codec.row_body
        lists = np.empty(self._nbytes, np.uint8)
        frames = lists if body == PLAIN else np.zeros(self._nbytes, np.uint8)
        head, first, size = frame_head(self._codec, dtype), 0, len(self._rows)
        while first < size:
            left, indices, values = self._pipeline.kernels.send_rows(
                table, first, head, frames, lists, body, dtype
            )
            if left < size:
                self._leave(left, table[left], indices, values)
            first = left + 1
        words, done = lists.view(np.uint32), (table[name].tolist() for name in DONE)
        for (ticket, _), start, nbytes, count, threshold, margin in zip(self._tickets, *done):
            if count < 0:
                continue
            state, at = ticket.state, start + HEADER_BYTES
            end = at + 4 * count
            values = lists[end : end + count * dtype.itemsize].view(dtype)
            sent = Selection(words[at // 4 : end // 4], values, state.spec.numel)
            # As ``Pipeline.send_found`` does for other tensors; the margin is the selector's memo.
            state.note(threshold, margin, state.spec.key)
            if state.departures is not None:
                state.departures.note(state.steps, sent.indices)
            state.memory.update(sent, ticket.parts.is_exact, is_taken=True)
            frame, ticket.gradient = frames[start : start + nbytes], None
            ticket.outgoing = Outgoing(frame, entries=count, found=ONE_PASS)
        if (spans := self._pipeline.spans).is_heard:
            sizes = {ticket.key: ticket.state.spec.numel for ticket, _ in self._tickets}
            spans.tell_together("select", sizes, self._began_s)

    def _leave(self, number: int, row: np.void, indices: np.ndarray, values: np.ndarray) -> None:
        ticket, given = self._tickets[number]
        taken, entries = int(row["taken"]), None
        if taken >= 0:
            numel = ticket.state.spec.numel
            entries = Selection(indices[:taken].copy(), values[:taken].copy(), numel)
        taking = Taking(int(row["nonfinite"]), entries)
        ticket.accumulated = Accumulated(given.out, None, taking)
