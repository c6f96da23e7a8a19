"""Waiting with a limit for what can only be asked whether it is done."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 2e-5, 5e-4


def sleep_until(is_done: Callable[[], bool], limit_s: float | None) -> bool:
    """Ask, with sleep in between, until it is done; tell whether it was in time.

    Parameters
    ----------
    is_done : the question
    limit_s : seconds; None waits for ever
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    sleep_s = SHORTEST_SLEEP_S
    while not is_done():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(sleep_s)
        # Short sleeps first: most results come soon, and the others need not be asked for often.
        sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
    return True
