"""Densities a layer at which the backward pass hides the messages: LAGS-SGD."""

from __future__ import annotations

import numpy as np

STEPS = 48
"""Steps between the least and the highest density, evenly on a logarithmic scale.  On a grid ranks
agree though they compute in other orders."""


def grid_of(low: float, high: float) -> np.ndarray:
    """Return the densities that are tried, ascending, float64 [densities]."""
    grid = np.clip(np.geomspace(low, high, STEPS + 1), low, high)  # rounding may leave the range
    grid[[0, -1]] = low, high
    return grid


def largest_hidden(ready_s: np.ndarray, takes_s: np.ndarray) -> list[int]:
    """Return the number of the largest size of each message at which it hides.

    Messages go one after the other, each when it is ready. One hides if it is through before the
    next is ready:

        time there is = ready of the next - max(ready of this one, end of the one before)

    The last, behind which nothing is computed, gets the least, and so does every message without
    time to spare: it goes on when the next is ready, and takes of its time.

    Parameters
    ----------
    ready_s : float64 [messages], ascending
    takes_s : float64 [messages, sizes], seconds of each message at each size, ascending

    Returns
    -------
    Column of ``takes_s`` for every message
    """
    found, free_s = [], 0.0
    for number, (at_s, sizes_s) in enumerate(zip(ready_s.tolist(), takes_s)):
        sends_s = max(free_s, at_s)
        next_s = float(ready_s[number + 1]) if number + 1 < len(ready_s) else 0.0
        fitting = np.flatnonzero(sends_s + sizes_s <= next_s)
        found.append(int(fitting[-1]) if fitting.size else 0)
        free_s = sends_s + float(sizes_s[found[-1]])
    return found
