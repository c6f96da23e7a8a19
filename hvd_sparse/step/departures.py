"""Departures: at which step each entry of a tensor was last sent, for telemetry's staleness."""

from __future__ import annotations

from array import array

import numpy as np

ROOM = 8
"""A tensor's entries for one that may wait to be entered."""
STEP = 32
"""Entries that a step counts for besides its own."""
MOST_STEPS = 256
"""Steps of few entries that may wait to be entered."""
MANY = 512
"""Entries of a step from which on a part of the tensor stands for all of it."""
BLOCK, EVERY = 64, 8
"""That part: of so many blocks of this length the first; powers of two."""
INDEX_BYTES = np.dtype(np.uint32).itemsize


class Departures:
    """The last step at which each entry left.

    A step's entries are only put aside, as that is on every tensor's way; many steps are entered at
    once, when somebody asks or there is no more room.  Few of them are put one behind the other, as
    an array a step would lie where no cache holds it by then; many are kept as they are.  Looking
    up places that no cache holds is what many entries cost, so that one block of ``EVERY`` is
    watched there.

    Parameters
    ----------
    numel : entries of the tensor
    step : that they are said to have left at so far
    leaving : how many entries leave at a step
    """

    def __init__(self, numel: int, step: int, leaving: int) -> None:
        self._is_sampled = leaving >= MANY and numel >= BLOCK * EVERY * EVERY
        watched = (numel // (BLOCK * EVERY) + 1) * BLOCK if self._is_sampled else numel
        self._left_at = np.full(watched, step, np.int32)
        self._begin()
        self._most = self._room = numel // ROOM + MOST_STEPS * STEP
        self._mean = 1.0

    def _begin(self) -> None:
        """Begin to put aside: entries, or where they are many their arrays."""
        # New ones, as numpy may still look at the last ones.
        self._indices, self._sizes, self._steps = bytearray(), array("i"), array("i")
        self._many: list[np.ndarray] = []

    def note(self, step: int, indices: np.ndarray) -> None:
        """Note that entries leave; ``drop`` takes it back until the next step is noted.

        Parameters
        ----------
        step : after all that were noted
        indices : uint32; kept for a while, and must not change
        """
        if self._room < 0:
            self._enter()
        self._room -= indices.size + STEP
        self._steps.append(step)
        self._sizes.append(indices.size)
        if self._is_sampled:
            self._many.append(indices)
        else:
            self._indices += indices.tobytes()

    def drop(self, step: int) -> None:
        """Forget a step that is taken back, if it was the last that was noted."""
        if self._steps and self._steps[-1] == step:
            self._steps.pop()
            size = self._sizes.pop()
            self._room += size + STEP
            if self._is_sampled:
                self._many.pop()
            else:
                del self._indices[len(self._indices) - size * INDEX_BYTES :]

    def waited(self, indices: np.ndarray, step: int) -> int:
        """Return for how many steps entries have waited that leave at this one, added up; where a
        part is watched, that part's mean counts for all, and where none of it leaves, the last
        one."""
        if self._steps:
            self._enter()
        places = self._places(indices)
        if places.size:
            left_at = int(self._left_at[places].sum(dtype=np.int64))
            self._mean = step - left_at / places.size
        return round(self._mean * indices.size)

    def _enter(self) -> None:
        indices = np.frombuffer(self._indices, np.uint32)
        steps = np.frombuffer(self._steps, np.int32).repeat(np.frombuffer(self._sizes, np.int32))
        if self._is_sampled:
            indices = np.concatenate(self._many)
            watched = np.flatnonzero(indices & (BLOCK * (EVERY - 1)) == 0)
            indices, steps = indices[watched], steps[watched]
        # An entry may be in several steps: an assignment would promise none of them.
        np.maximum.at(self._left_at, self._places(indices, is_watched=True), steps)
        self._begin()
        self._room = self._most

    def _places(self, indices: np.ndarray, *, is_watched: bool = False) -> np.ndarray:
        """Return where the watched ones of some entries stand."""
        if not self._is_sampled:
            return indices.astype(np.intp)
        if not is_watched:
            indices = indices[indices & (BLOCK * (EVERY - 1)) == 0]
        places: np.ndarray = indices // (BLOCK * EVERY) * BLOCK + indices % BLOCK
        return places.astype(np.intp)
