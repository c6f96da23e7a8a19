"""LAGS-SGD: densities by layer at which the backward pass hides the messages."""

from __future__ import annotations

import numpy as np

STEPS = 48
"""Steps of the grid from the least to the highest density, evenly on a logarithmic scale.  On a
grid, rounding seldom changes the chosen density."""


def grid_of(low: float, high: float) -> np.ndarray:
    """Return the grid of densities, ascending, float64 [densities]."""
    grid = np.clip(np.geomspace(low, high, STEPS + 1), low, high)  # against rounding
    grid[[0, -1]] = low, high
    return grid


def largest_hidden(ready_s: np.ndarray, takes_s: np.ndarray) -> list[int]:
    """Return the largest size of each message at which it hides.

    Messages are sent one after the other, each as soon as it is ready. A message hides if it ends
    before the next one is ready:

        available time = ready(next) - max(ready(this), end(previous))

    A message that does not hide at any size gets the least size, and delays the next one. The last
    message gets the least size too, because no computation follows it.

    Parameters
    ----------
    ready_s : float64 [messages], ascending
    takes_s : float64 [messages, sizes], seconds of each message at each size, ascending

    Returns
    -------
    The column of ``takes_s`` for every message
    """
    found, free_s = [], 0.0
    for number, (at_s, sizes_s) in enumerate(zip(ready_s.tolist(), takes_s)):
        sends_s = max(free_s, at_s)
        next_s = float(ready_s[number + 1]) if number + 1 < len(ready_s) else 0.0
        fitting = np.flatnonzero(sends_s + sizes_s <= next_s)
        found.append(int(fitting[-1]) if fitting.size else 0)
        free_s = sends_s + float(sizes_s[found[-1]])
    return found
