"""Polling with a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 2e-5, 5e-4


def sleep_until(is_done: Callable[[], bool], limit_s: float | None) -> bool:
    """Poll ``is_done`` until it returns True; return False if the time limit passes first.

    Parameters
    ----------
    is_done : function to poll
    limit_s : time limit in seconds; None for no limit
    """
    deadline = None if limit_s is None else time.monotonic() + limit_s
    sleep_s = SHORTEST_SLEEP_S
    while not is_done():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(sleep_s)
        # Sleep briefly at first, because most results arrive soon.
        sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
    return True
