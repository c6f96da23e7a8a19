"""Departures: the step at which each entry of a tensor was last sent, for telemetry's staleness."""

from __future__ import annotations

from array import array

import numpy as np

ROOM = 8
"""Upper bound on buffered entries, as a fraction: one entry per this many of the tensor."""
STEP = 32
"""Fixed cost of a buffered step, counted in entries."""
MOST_STEPS = 256
"""Upper bound on the number of buffered steps with few entries."""
MANY = 512
"""Number of entries per step from which staleness is estimated from a part of the tensor."""
BLOCK, EVERY = 64, 8
"""This part: the first of every ``EVERY`` blocks of ``BLOCK`` entries; both powers of two."""
INDEX_BYTES = np.dtype(np.uint32).itemsize


class Departures:
    """The last step at which each entry was sent.

    The entries of a step are only buffered, because this happens for every tensor in every step;
    many steps are processed at once, when staleness is asked for or the buffer is full.  Few
    entries are appended to one array, because small separate arrays would be out of cache by
    then; long lists are kept as they are.  For many entries only one block in ``EVERY`` is
    watched, because the lookups at uncached places are the main cost.

    Parameters
    ----------
    numel : entries of the tensor
    step : step at which all entries count as sent at the start
    leaving : expected number of entries sent per step
    """

    def __init__(self, numel: int, step: int, leaving: int) -> None:
        self._is_sampled = leaving >= MANY and numel >= BLOCK * EVERY * EVERY
        watched = (numel // (BLOCK * EVERY) + 1) * BLOCK if self._is_sampled else numel
        self._left_at = np.full(watched, step, np.int32)
        self._begin()
        self._most = self._room = numel // ROOM + MOST_STEPS * STEP
        self._mean = 1.0

    def _begin(self) -> None:
        """Start an empty buffer."""
        # New objects, because numpy may still hold views of the old ones.
        self._indices, self._sizes, self._steps = bytearray(), array("i"), array("i")
        self._many: list[np.ndarray] = []

    def note(self, step: int, indices: np.ndarray) -> None:
        """Record the entries sent at a step; ``drop`` undoes this until the next step is
        recorded.

        Parameters
        ----------
        step : greater than all recorded steps
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
        """Forget a step that is rolled back, if it is the last recorded one."""
        if self._steps and self._steps[-1] == step:
            self._steps.pop()
            size = self._sizes.pop()
            self._room += size + STEP
            if self._is_sampled:
                self._many.pop()
            else:
                del self._indices[len(self._indices) - size * INDEX_BYTES :]

    def waited(self, indices: np.ndarray, step: int) -> int:
        """Return the staleness of the entries sent at this step, summed over them.

        If only a part is watched, its mean stands for all entries; if no watched entry is sent,
        the last mean does.
        """
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
        # An entry may be in several steps, and a plain assignment would not guarantee the latest.
        np.maximum.at(self._left_at, self._places(indices, is_watched=True), steps)
        self._begin()
        self._room = self._most

    def _places(self, indices: np.ndarray, *, is_watched: bool = False) -> np.ndarray:
        """Return the places of the entries in the table; with ``is_watched`` all indices are
        watched."""
        if not self._is_sampled:
            return indices.astype(np.intp)
        if not is_watched:
            indices = indices[indices & (BLOCK * (EVERY - 1)) == 0]
        places: np.ndarray = indices // (BLOCK * EVERY) * BLOCK + indices % BLOCK
        return places.astype(np.intp)
