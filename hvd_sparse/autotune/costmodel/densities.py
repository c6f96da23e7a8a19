"""Densities a layer at which the backward pass hides the messages: LAGS-SGD."""

from __future__ import annotations

import numpy as np

from hvd_sparse.autotune.costmodel.instance import Plan, check_plan, groups
from hvd_sparse.autotune.costmodel.network import Setting
from hvd_sparse.autotune.costmodel.predict import sparse_instance
from hvd_sparse.autotune.costmodel.profile import Profile
from hvd_sparse.checks import check_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.errors import InvalidOption

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


def hiding_densities(
    profile: Profile,
    configuration: Configuration,
    setting: Setting,
    plan: Plan,
    low: float,
    high: float,
) -> list[float]:
    """Return the highest density of each layer at which its message is through in time.

    In time is before the next group is ready: ``largest_hidden``, of which the least is ``low``.

    Parameters
    ----------
    profile : the model's layers
    configuration : its density does not matter; its exchange must be of one collective
    setting : ranks and costs
    plan : of the compressed layers, in the order of the backward pass.  All layers of a group get
        one density; with every layer in a group of its own this is the rule for single layers
    low, high : densities in (0, 1]

    Returns
    -------
    A density for each compressed layer, in the order of the backward pass

    Raises
    ------
    InvalidOption
        If ``low`` is above ``high``, or the exchange has later collectives, which nothing hides.

    Notes
    -----
    Paper: shi2020lags, from its abstract; its authors' code leaves the rule out.  Derived.
    """
    low, high = check_density(low, "low"), check_density(high, "high")
    if low > high:
        raise InvalidOption(f"low is {low} and high is {high}: low is the smaller one")
    grid = grid_of(low, high)
    size = len(profile.compressed.layers)
    instances = [
        sparse_instance(profile, configuration, setting, densities=[float(d)] * size) for d in grid
    ]
    least = instances[0]
    if least.late.start_s > 0:
        raise InvalidOption(
            f"exchange {configuration.exchange.id} ends behind the backward pass: use "
            "exchange='allgather'"
        )
    ends = groups(check_plan(plan, size))
    ready_s = np.cumsum([float(least.compute_s(start, stop)) for start, stop in ends])
    takes_s = np.array(
        [[float(each.wire_s(start, stop)) for each in instances] for start, stop in ends]
    )
    chosen = largest_hidden(ready_s, takes_s)
    return [float(grid[n]) for n, (start, stop) in zip(chosen, ends) for _ in range(start, stop)]
