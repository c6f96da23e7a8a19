"""A bucket's tensors in one call of the engine, from gradients to frames.

What cannot be done in that call is left to the walk of each tensor (``step.pipeline``), which goes
on from where the row has stopped; the results are the same, bit for bit.
"""

from __future__ import annotations

from types import ModuleType
from typing import cast

import numpy as np

from hvd_sparse.exchanges.members import Begun, Outgoing
from hvd_sparse.kernels.contract import Aim, Kernels, Taking
from hvd_sparse.kernels.rows import SENT, address, rows_of
from hvd_sparse.selectors._aim import margin_of
from hvd_sparse.selectors.contract import Found
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.records import TensorStep
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import HEADER_BYTES, frame_head

UNKNOWN = Taking(0.0, 0, None)
"""Of a pass that was noted, and not made yet."""
DONE = ["start", "sent", "threshold", "margin"]
"""What is read of the rows that were walked."""
WORD_BYTES = 8
"""Frames begin at multiples of it, so that vectors can be read where they lie in them."""


class NotedPasses:
    """The engine's kernels, but for the pass that adds a gradient, which is only noted.

    Attributes
    ----------
    noted : gradient, residual and sum of the last such pass
    """

    def __init__(self, kernels: Kernels | ModuleType) -> None:
        self._kernels = kernels
        self.noted: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None

    def __getattr__(self, name: str) -> object:
        return getattr(self._kernels, name)

    def accumulate_and_take(
        self, gradient: np.ndarray, residual: np.ndarray, out: np.ndarray, aim: Aim
    ) -> Taking:
        self.noted = gradient, residual, out
        return UNKNOWN


class OutgoingRows:
    """The rows of one bucket, of vectors of one dtype; others are left to the walk.

    Parameters
    ----------
    pipeline, world_size : as the walk has them
    """

    def __init__(self, pipeline: Pipeline, world_size: int) -> None:
        is_bounded = pipeline.configuration.max_gathered_bytes is not None
        is_left = is_bounded or pipeline.looks_first
        self._kernels = None if is_left else rows_of(pipeline.kernels)
        self._pipeline, self._world_size = pipeline, world_size
        self._passes = NotedPasses(pipeline.kernels)
        self._tickets: list[tuple[TensorStep, Begun]] = []
        self._rows: list[tuple[float, ...]] = []
        self._added: list[
            np.ndarray
        ] = []  # which rows have the addresses of, and nobody else holds
        self._nbytes, self._codec, self._dtype = 0, 0, np.dtype(np.float32)

    def add(self, ticket: TensorStep) -> None:
        """Take a tensor in, if the call can do what its parts ask for; its pass has begun then."""
        state, parts = ticket.state, ticket.parts
        if (
            ticket.late is None
            or self._kernels is None
            or not parts.sends_plain
            or state.is_on_device
        ):
            return
        spec, selector, codec = state.spec, parts.selector, parts.codec.number
        band = selector.band(spec.numel) if state.selected_in == spec.key else None
        if band is None or codec is None or (self._rows and spec.accumulator != self._dtype):
            return
        aim = selector.aim(spec.numel, state.threshold, state.memo)
        if aim is None:
            return
        gradient, passes = ticket.gradient(), self._passes
        passes.noted = None
        kernels = cast(Kernels, passes)
        begun = Begun(gradient, state.memory.compensate(gradient, kernels, self._world_size, aim))
        ticket.late = None
        if passes.noted is None:  # the memory has made another pass
            ticket.begun = begun
            return
        added, old, new = passes.noted
        self._tickets.append((ticket, begun))
        self._added.append(added)
        self._rows.append(
            (
                address(added), address(old), address(new), spec.numel, aim.threshold, aim.capacity,
                band.least, band.wanted, band.most, margin_of(state.memo), self._nbytes,
                0, 0, 0, 0, 0,
            )
        )  # fmt: skip
        self._codec, self._dtype = codec, spec.accumulator
        nbytes = HEADER_BYTES + band.most * (4 + self._dtype.itemsize)
        self._nbytes += -(-nbytes // WORD_BYTES) * WORD_BYTES

    def send(self) -> None:
        """Walk all rows.  Those that are left to the walk have their passes behind them."""
        if self._kernels is None or not self._rows:
            return
        table, frames = np.array(self._rows, SENT), np.empty(self._nbytes, np.uint8)
        head, first, size = frame_head(self._codec, self._dtype), 0, len(self._rows)
        while first < size:
            left, indices, values = self._kernels.send_rows(table, first, head, frames, self._dtype)
            if left < size:
                self._leave(*self._tickets[left], table[left], indices, values)
            first = left + 1
        width = 4 + self._dtype.itemsize
        for (ticket, _), (start, count, *chosen) in zip(self._tickets, table[DONE].tolist()):
            if count >= 0:
                frame = frames[start : start + HEADER_BYTES + count * width]
                self._sent(ticket, frame, count, *chosen)

    def _leave(
        self,
        ticket: TensorStep,
        begun: Begun,
        row: np.void,
        indices: np.ndarray,
        values: np.ndarray,
    ) -> None:
        """Let the walk go on with a row: give it what the pass took."""
        taken, entries = int(row["taken"]), None
        if taken >= 0:
            numel = ticket.state.spec.numel
            entries = Selection(indices[:taken].copy(), values[:taken].copy(), numel)
        taking = Taking(float(row["abs_sum"]), int(row["nonfinite"]), entries)
        accumulated = begun.accumulated._replace(taking=taking)
        ticket.begun = begun._replace(accumulated=accumulated)

    def _sent(
        self, ticket: TensorStep, frame: np.ndarray, count: int, threshold: float, margin: float
    ) -> None:
        """Note what a frame sends, as ``Pipeline.send_found`` does."""
        state, end = ticket.state, HEADER_BYTES + 4 * count
        spec, indices = state.spec, frame[HEADER_BYTES:end].view(np.uint32)
        sent = Selection(indices, frame[end:].view(self._dtype), spec.numel)
        state.note(threshold, margin, spec.key)
        if state.departures is not None:
            state.departures.note(state.steps, indices)
        state.memory.update(sent, True, self._pipeline.kernels, is_taken=True)
        found = Found(sent, threshold, memo=margin, is_one_pass=True, is_taken=True)
        ticket.outgoing = Outgoing(frame, entries=count, found=found)
