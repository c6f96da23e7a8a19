"""The state of a tensor between its steps."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels.contract import Zeros
from hvd_sparse.memories.contract import MemoryState
from hvd_sparse.step.departures import Departures
from hvd_sparse.types import Memo, Pace, Selection, TensorSpec


class Source(NamedTuple):
    """One vector to select from, a tensor's or that of several: its name and size, and what its
    last selection left.

    Attributes
    ----------
    spec : of the vector
    steps : completed steps
    threshold, memo : where its last selection ended; None for a cold start
    """

    spec: TensorSpec
    steps: int
    threshold: float | None
    memo: Memo


class TensorState:
    """Keep one tensor between its steps: memory, what selector and exchange were left with,
    completed steps.

    A step writes new versions; ``commit`` makes them the state, ``roll_back`` drops them.

    Attributes
    ----------
    part : the entries that this rank keeps back for; all, but for exchanges that sum before they
        select
    threshold, memo : what the last selection ended with
    selected_in : which vector that selection was made from: the tensor's key, or the name of a
        group
    exchange_memo : the same on all ranks
    pace : learning rate of the step, where densities follow it; else None
    departures : when each entry left last; None where nobody asked yet
    is_on_device : gradient, memory and result lie on a device

    Parameters
    ----------
    zeros : makes the memory's vectors there; None for a tensor of the host
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
        self._new: tuple[float | None, Memo, str] = (None, None, spec.key)
        self._new_exchange_memo: Memo = None
        self._returned: Selection | None = None
        self.departures: Departures | None = None

    def waited(self, indices: np.ndarray) -> int:
        """Return for how many steps the entries that leave have waited, added up; remembered where
        the step is good.

        Kept from the first call on, which telemetry makes, and in no checkpoint.
        """
        departures = self.departures
        if departures is None:
            numel = self.part.stop - self.part.start
            departures = self.departures = Departures(numel, self.steps - 1, indices.size)
        waited = departures.waited(indices, self.steps)
        departures.note(self.steps, indices)
        return waited

    @property
    def source(self) -> Source:
        """The tensor as what is selected from: it starts cold where it was last selected in a
        group."""
        is_warm = self.selected_in == self.spec.key
        start = (self.threshold, self.memo) if is_warm else (None, None)
        return Source(self.spec, self.steps, *start)

    def note(self, threshold: float | None, memo: Memo, selected_in: str) -> None:
        """Record the start of the selector's next step; ``commit`` applies it."""
        self._new = (threshold, memo, selected_in)

    def note_dense(self) -> None:
        """Record that nothing was selected: the next step has no threshold to start from."""
        self._new = (None, self.memo, self.selected_in)

    def note_exchange(self, returned: Selection | None, memo: Memo) -> None:
        """Record the entries and the memo that the exchange returned; ``commit`` applies them."""
        self._returned, self._new_exchange_memo = returned, memo

    def restore(
        self,
        steps: int,
        threshold: float | None,
        memo: Memo,
        exchange_memo: Memo = None,
        selected_in: str | None = None,
    ) -> None:
        """Go on from a checkpoint.

        selected_in : None is the tensor itself, as before there were groups
        """
        self.steps, self.threshold, self.memo = steps, threshold, memo
        self.selected_in = self.spec.key if selected_in is None else selected_in
        self.departures = None
        self.exchange_memo = exchange_memo
        # A step without a selection on this rank, for example if another rank leads, sets none of
        # these.
        self._settle()

    def commit(self) -> None:
        """Make the step's versions the state."""
        self.memory.commit()
        # After the commit, because only then is the new version the residual.
        if self._returned is not None:
            self.memory.add(self._returned)
            self._returned = None
        self.threshold, self.memo, self.selected_in = self._new
        self.exchange_memo = self._new_exchange_memo
        self.steps += 1

    def roll_back(self) -> None:
        """Drop the step's versions."""
        self.memory.roll_back()
        self._settle()
        if self.departures is not None:
            self.departures.drop(self.steps)

    def _settle(self) -> None:
        self._new = (self.threshold, self.memo, self.selected_in)
        self._returned, self._new_exchange_memo = None, self.exchange_memo
