"""A bucket's tensors in one call of the engine, from gradients to frames.

What cannot be done in that call is left to the walk of each tensor (``step.pipeline``), which goes
on from where the row has stopped; the results are the same, bit for bit.
"""

from __future__ import annotations

from collections import defaultdict
from types import ModuleType
from typing import NamedTuple, cast

import numpy as np

from hvd_sparse.exchanges.members import Begun, Outgoing
from hvd_sparse.kernels.contract import Aim, Kernels, Taking
from hvd_sparse.kernels.rows import SENT, RowKernels, address, rows_of
from hvd_sparse.selectors._aim import margin_of
from hvd_sparse.selectors.contract import Found
from hvd_sparse.step.loss_scale import unscaled
from hvd_sparse.step.pipeline import Pipeline
from hvd_sparse.step.records import TensorStep
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import HEADER_BYTES, frame_head

UNKNOWN = Taking(0.0, 0, None)
"""Of a pass that was noted, and not made yet."""
DONE = ["start", "sent", "threshold", "margin"]
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


class Row(NamedTuple):
    """A tensor whose pass was noted.

    Attributes
    ----------
    ticket : of its step
    begun : the pass, with what the vectors lie in
    """

    ticket: TensorStep
    begun: Begun


class OutgoingRows:
    """The tensors of one bucket that wait for the call.

    Parameters
    ----------
    pipeline, world_size : as the walk has them
    """

    def __init__(self, pipeline: Pipeline, world_size: int) -> None:
        self._pipeline, self._world_size = pipeline, world_size
        configuration = pipeline.configuration
        self._kernels = rows_of(pipeline.kernels)
        if configuration.max_gathered_bytes is not None:
            self._kernels = None
        self._passes = NotedPasses(pipeline.kernels)
        self._noting = cast(Kernels, self._passes)
        self._rows: dict[np.dtype, list[Row]] = defaultdict(list)
        self._told: dict[np.dtype, list[tuple[float, ...]]] = defaultdict(list)
        self._room: dict[np.dtype, int] = defaultdict(int)

    def add(self, ticket: TensorStep) -> None:
        """Take a tensor in, if the call can do what its parts ask for; its pass has begun then."""
        state, parts, late = ticket.state, ticket.parts, ticket.late
        if self._kernels is None or late is None:
            return
        spec, memory = state.spec, state.memory
        band = parts.selector.band(spec.numel) if parts.sends_plain else None
        if band is None or state.is_on_device or state.selected_in != spec.key:
            return
        aim = parts.selector.aim(spec.numel, state.threshold, state.memo)
        if aim is None:
            return
        gradient, passes = unscaled(late.array(), ticket.scale), self._passes
        passes.noted = None
        accumulated = memory.compensate(gradient, self._noting, self._world_size, aim)
        begun = Begun(gradient, accumulated)
        ticket.late, ticket.outgoing = None, Outgoing(begun=begun)
        if passes.noted is None:  # the memory has made another pass
            return
        added, old, new = passes.noted
        dtype = new.dtype
        self._rows[dtype].append(Row(ticket, begun))
        start = self._room[dtype]
        self._told[dtype].append(
            (
                address(added), address(old), address(new), spec.numel, aim.threshold, aim.capacity,
                band.least, band.wanted, band.most, margin_of(state.memo), start, 0, 0, 0, 0, 0,
            )
        )  # fmt: skip
        nbytes = HEADER_BYTES + band.most * (4 + dtype.itemsize)
        self._room[dtype] = start + -(-nbytes // WORD_BYTES) * WORD_BYTES

    def send(self) -> None:
        """Walk all rows.  Those that are left to the walk have their passes behind them."""
        for dtype, rows in self._rows.items():
            assert self._kernels is not None
            self._send(self._kernels, dtype, rows)

    def _send(self, kernels: RowKernels, dtype: np.dtype, rows: list[Row]) -> None:
        table, frames = np.array(self._told[dtype], SENT), np.empty(self._room[dtype], np.uint8)
        codec = rows[0].ticket.parts.codec
        assert codec.number is not None
        head, first = frame_head(codec.number, dtype), 0
        while first < len(rows):
            left, indices, values = kernels.send_rows(table, first, head, frames, dtype)
            if left < len(rows):
                self._leave(rows[left], table[left], indices, values)
            first = left + 1
        width = 4 + dtype.itemsize
        for row, (start, count, threshold, margin) in zip(rows, table[DONE].tolist()):
            if count >= 0:
                frame = frames[start : start + HEADER_BYTES + count * width]
                self._sent(row.ticket, frame, count, threshold, margin)

    def _leave(self, row: Row, told: np.void, indices: np.ndarray, values: np.ndarray) -> None:
        """Let a row be gone on with by the walk: give it what its pass took."""
        taken, (ticket, begun) = int(told["taken"]), row
        numel = ticket.state.spec.numel
        entries = None
        if taken >= 0:
            entries = Selection(indices[:taken].copy(), values[:taken].copy(), numel)
        taking = Taking(float(told["abs_sum"]), int(told["nonfinite"]), entries)
        accumulated = begun.accumulated._replace(taking=taking)
        ticket.outgoing = Outgoing(begun=begun._replace(accumulated=accumulated))

    def _sent(
        self, ticket: TensorStep, frame: np.ndarray, count: int, threshold: float, margin: float
    ) -> None:
        """Note what the others will decode, as ``Pipeline.send_found`` does."""
        state = ticket.state
        split, spec = HEADER_BYTES + 4 * count, state.spec
        indices, values = (
            frame[HEADER_BYTES:split].view(np.uint32),
            frame[split:].view(spec.accumulator),
        )
        sent = Selection(indices, values, spec.numel)
        state.note(threshold, margin, spec.key)
        if state.departures is not None:
            state.departures.note(state.steps, indices)
        state.memory.update(sent, True, self._pipeline.kernels, is_taken=True)
        found = Found(sent, threshold, memo=margin, is_one_pass=True, is_taken=True)
        ticket.outgoing = Outgoing(frame, entries=count, found=found)
