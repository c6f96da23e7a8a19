"""Departures: at which step each entry of a tensor was last sent, for telemetry's staleness."""

from __future__ import annotations

import numpy as np

MOST_STEPS = 256
"""Steps that may wait to be entered."""
FEW = 64
"""Entries of a step from which on each is entered by itself."""
ROOM = 8
"""A tensor's entries for one that may wait to be entered."""


class Departures:
    """The last step at which each entry left.

    A step is only noted; many are entered at once, for a call of numpy a tensor and step is what
    noting would cost where tensors are small.

    Parameters
    ----------
    numel : entries of the tensor
    step : that they are said to have left at so far
    """

    def __init__(self, numel: int, step: int) -> None:
        self._left_at = np.full(numel, step, np.int32)
        self._noted: list[tuple[int, np.ndarray]] = []
        self._most_noted = 1

    def note(self, step: int, indices: np.ndarray) -> None:
        """Note that entries have left; the array is kept for a while, and must not change."""
        self._noted.append((step, indices))
        if len(self._noted) >= self._most_noted:  # at least this one
            self._enter()

    def waited(self, indices: np.ndarray, step: int) -> int:
        """Return for how many steps entries have waited that leave at this one, added up."""
        if self._noted:
            self._enter()
        return step * indices.size - int(self._left_at[indices].sum(dtype=np.int64))

    def _enter(self) -> None:
        if len(self._noted) == 1:  # where there is much to enter, a call each costs least
            step, last = self._noted[0]
            self._left_at[last] = step
        else:
            steps, indices = zip(*self._noted)
            last = indices[-1]
            # An entry may be in several: an assignment would promise none of their steps.
            np.maximum.at(
                self._left_at,
                np.concatenate(indices),
                np.repeat(np.array(steps, np.int32), [each.size for each in indices]),
            )
        self._noted.clear()
        most = min(MOST_STEPS, self._left_at.size // (ROOM * (last.size + 1)))
        self._most_noted = most if last.size < FEW else 1
