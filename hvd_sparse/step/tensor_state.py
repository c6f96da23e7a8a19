"""The state of a tensor, which is kept between its steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.contract import Zeros
from hvd_sparse.memories.contract import MemoryState
from hvd_sparse.step.stats import Sent
from hvd_sparse.types import Memo, Pace, Selection, Settings, State, TensorSpec

MANY = 512
"""If the first recorded step of a long tensor sends at least this many entries, the tensor's
staleness is estimated from a part of its entries."""
BLOCK, EVERY = 64, 8
"""Staleness is estimated from the first of every ``EVERY`` blocks of ``BLOCK`` entries. Both
numbers are powers of two."""


class TensorState:
    """The state of one tensor: its memory, the values from which its selector and its exchange
    start, and the number of its completed steps. A step writes a new memory and new values;
    ``commit`` keeps the new versions, ``roll_back`` drops them.

    part : the range of entries whose residual this rank keeps
    selected_in : name of the vector of the last selection: the tensor's key, or its group's name
    counted : for the counters; None if the step has no result yet, or is not counted
    """

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
        self.counted: Sent | None = None

    def waited(self, indices: np.ndarray) -> int:
        """Return how many steps ago the entries that this step sends were last sent, summed over
        these entries."""
        departures = self.departures
        if departures is None:
            numel = self.part.stop - self.part.start
            departures = self.departures = Departures(numel, self.steps - 1, indices.size)
        waited = departures.waited(indices, self.steps)
        departures.note(self.steps, indices)
        return waited

    @property
    def start(self) -> tuple[float | None, Memo]:
        """The last threshold and the memo (what the selector stored in the last step), from which
        the selector starts. Both are None if the last selection was over a group."""
        return (self.threshold, self.memo) if self.selected_in == self.spec.key else (None, None)

    def note(self, threshold: float | None, memo: Memo, selected_in: str) -> None:
        """Record the values from which the next step's selector starts; ``commit`` applies them."""
        self._new = (threshold, memo, selected_in)

    def note_dense(self) -> None:
        self._new = (None, self.memo, self.selected_in)

    def note_exchange(self, returned: Selection | None, memo: Memo) -> None:
        self._returned, self._new_exchange_memo = returned, memo

    def restore(self, saved: State) -> None:
        """Set the state, except the memory, from a checkpoint."""
        self.steps, self.threshold, self.memo = saved["steps"], saved["threshold"], saved["memo"]
        self.exchange_memo, self.selected_in = saved["exchange_memo"], saved["selected_in"]
        self.departures = None
        # In steps in which another rank selects, ``commit`` must keep the restored values.
        self._settle()

    def commit(self) -> Sent | None:
        """Keep the new versions. Return what the step has sent, for the counters."""
        self.memory.commit()
        # After the commit, because only then is the new version the residual.
        if self._returned is not None:
            self.memory.add(self._returned)
            self._returned = None
        self.threshold, self.memo, self.selected_in = self._new
        self.exchange_memo = self._new_exchange_memo
        self.steps += 1
        counted, self.counted = self.counted, None
        return counted

    def roll_back(self) -> None:
        self.memory.roll_back()
        self._settle()
        if self.departures is not None:
            self.departures.drop(self.steps)

    def _settle(self) -> None:
        self.counted = None
        self._new = (self.threshold, self.memo, self.selected_in)
        self._returned, self._new_exchange_memo = None, self.exchange_memo


class Departures:
    """Records for each entry the step in which it was last sent, to compute its staleness. An entry
    that was not sent since recording began has the number ``step``. ``leaving`` is the number of
    entries that the first recorded step sends. If it is large and the tensor is long, only one of
    ``EVERY`` blocks of entries is recorded, because random reads from uncached memory are slow."""

    def __init__(self, numel: int, step: int, leaving: int) -> None:
        self._is_sampled = leaving >= MANY and numel >= BLOCK * EVERY * EVERY
        watched = (numel // (BLOCK * EVERY) + 1) * BLOCK if self._is_sampled else numel
        self._left_at = np.full(watched, step, np.int32)
        self._last: tuple[int, np.ndarray, np.ndarray] | None = None
        self._mean = 1.0

    def note(self, step: int, indices: np.ndarray) -> None:
        """Record the entries sent at ``step``. Calls must be in the order of steps."""
        places = self._places(indices)
        self._last = step, places, self._left_at[places]
        self._left_at[places] = step

    def drop(self, step: int) -> None:
        """Undo the last call of ``note`` if it was for ``step``, which is being rolled back."""
        if self._last is not None and self._last[0] == step:
            _, places, before = self._last
            self._left_at[places] = before
            self._last = None

    def waited(self, indices: np.ndarray, step: int) -> int:
        """Return the staleness of the entries sent at ``step``, summed over them. An entry's
        staleness is the number of steps since it was last sent. Entries that are not recorded count
        with the mean of those that are. If none of them is recorded, all count with the mean of an
        earlier step, or with 1 if there is none."""
        places = self._places(indices)
        if places.size:
            left_at = int(self._left_at[places].sum(dtype=np.int64))
            self._mean = step - left_at / places.size
        return round(self._mean * indices.size)

    def _places(self, indices: np.ndarray) -> np.ndarray:
        """Return at which places of ``_left_at``, the array of recorded steps, the entries
        ``indices`` are recorded, as intp. Entries that are not recorded are left out."""
        if self._is_sampled:
            watched = indices[indices & (BLOCK * (EVERY - 1)) == 0]
            indices = watched // (BLOCK * EVERY) * BLOCK + watched % BLOCK
        return indices.astype(np.intp)
