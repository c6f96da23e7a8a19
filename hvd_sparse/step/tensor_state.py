"""The state of a tensor between its steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.contract import Zeros
from hvd_sparse.memories.contract import MemoryState
from hvd_sparse.types import Memo, Pace, Selection, Settings, TensorSpec

MANY = 512
"""Number of entries per step from which staleness is estimated from a part of the tensor."""
BLOCK, EVERY = 64, 8
"""This part has the first of every ``EVERY`` blocks of ``BLOCK`` entries; both powers of two."""


class TensorState:
    """The memory of one tensor, the starting points of its selector and exchange, and its steps. A
    step writes new versions: ``commit`` keeps them, ``roll_back`` drops them. ``part`` are the
    entries whose residual this rank keeps. ``selected_in`` names the vector of the last selection:
    the tensor's key, or a group's name."""

    def __init__(
        self,
        spec: TensorSpec,
        configuration: Configuration,
        part: slice | None = None,
        zeros: Zeros | None = None,
    ) -> None:
        self.spec = spec
        self.part = slice(0, spec.numel) if part is None else part
        kept = spec if part is None else replace(spec, shape=(part.stop - part.start,))
        rollback = configuration.rollback
        self.memory: MemoryState = configuration.memory.create(kept, rollback=rollback)
        self.is_on_device = zeros is not None
        if zeros is not None:
            self.memory.move(zeros)
        self.threshold: float | None = None
        self.memo: Memo = None
        self.selected_in = spec.key
        self.exchange_memo: Memo = None
        self.steps = 0
        self.pace: Pace | None = None
        self.settings: Settings | None = None
        self._new: tuple[float | None, Memo, str] = (None, None, spec.key)
        self._new_exchange_memo: Memo = None
        self._returned: Selection | None = None
        self.departures: Departures | None = None

    def waited(self, indices: np.ndarray) -> int:
        """Return the sum of the sent entries' staleness, in steps; recorded from now on."""
        departures = self.departures
        if departures is None:
            numel = self.part.stop - self.part.start
            departures = self.departures = Departures(numel, self.steps - 1, indices.size)
        waited = departures.waited(indices, self.steps)
        departures.note(self.steps, indices)
        return waited

    @property
    def start(self) -> tuple[float | None, Memo]:
        """The threshold and memo to start from; both None if the tensor was last selected in a
        group."""
        return (self.threshold, self.memo) if self.selected_in == self.spec.key else (None, None)

    def note(self, threshold: float | None, memo: Memo, selected_in: str) -> None:
        """Record the start of the selector's next step; ``commit`` applies it."""
        self._new = (threshold, memo, selected_in)

    def note_dense(self) -> None:
        self._new = (None, self.memo, self.selected_in)

    def note_exchange(self, returned: Selection | None, memo: Memo) -> None:
        """Record the results of the exchange; ``commit`` applies them."""
        self._returned, self._new_exchange_memo = returned, memo

    def restore(
        self,
        steps: int,
        threshold: float | None,
        memo: Memo,
        exchange_memo: Memo = None,
        selected_in: str | None = None,
    ) -> None:
        """Continue from a checkpoint; old checkpoints have no ``selected_in``."""
        self.steps, self.threshold, self.memo = steps, threshold, memo
        self.selected_in = self.spec.key if selected_in is None else selected_in
        self.departures = None
        self.exchange_memo = exchange_memo
        # A step without a selection on this rank, for example if another rank leads, sets none of
        # these.
        self._settle()

    def commit(self) -> None:
        self.memory.commit()
        # After the commit, because only then is the new version the residual.
        if self._returned is not None:
            self.memory.add(self._returned)
            self._returned = None
        self.threshold, self.memo, self.selected_in = self._new
        self.exchange_memo = self._new_exchange_memo
        self.steps += 1

    def roll_back(self) -> None:
        self.memory.roll_back()
        self._settle()
        if self.departures is not None:
            self.departures.drop(self.steps)

    def _settle(self) -> None:
        self._new = (self.threshold, self.memo, self.selected_in)
        self._returned, self._new_exchange_memo = None, self.exchange_memo


class Departures:
    """The last step in which each entry was sent, for telemetry's staleness; all entries count as
    sent at ``step`` at first. If steps are expected to send many entries (``leaving``), one block
    in ``EVERY`` is watched, because lookups at uncached places cost most."""

    def __init__(self, numel: int, step: int, leaving: int) -> None:
        self._is_sampled = leaving >= MANY and numel >= BLOCK * EVERY * EVERY
        watched = (numel // (BLOCK * EVERY) + 1) * BLOCK if self._is_sampled else numel
        self._left_at = np.full(watched, step, np.int32)
        self._last: tuple[int, np.ndarray, np.ndarray] | None = None
        self._mean = 1.0

    def note(self, step: int, indices: np.ndarray) -> None:
        """Record the entries sent at a step, later than all before; ``drop`` undoes this."""
        places = self._places(indices)
        self._last = step, places, self._left_at[places]
        self._left_at[places] = step

    def drop(self, step: int) -> None:
        """Forget a step that is rolled back, if it was recorded last."""
        if self._last is not None and self._last[0] == step:
            _, places, before = self._last
            self._left_at[places] = before
            self._last = None

    def waited(self, indices: np.ndarray, step: int) -> int:
        """Return the summed staleness of entries sent at this step. If a part is watched, its mean
        counts for all entries, or the last mean if the part is empty."""
        places = self._places(indices)
        if places.size:
            left_at = int(self._left_at[places].sum(dtype=np.int64))
            self._mean = step - left_at / places.size
        return round(self._mean * indices.size)

    def _places(self, indices: np.ndarray) -> np.ndarray:
        """Return where the watched ones of these entries are recorded."""
        if self._is_sampled:
            watched = indices[indices & (BLOCK * (EVERY - 1)) == 0]
            indices = watched // (BLOCK * EVERY) * BLOCK + watched % BLOCK
        return indices.astype(np.intp)
