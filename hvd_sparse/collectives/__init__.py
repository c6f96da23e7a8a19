"""Implementations of ``collectives.contract``, one file for each communication library. Horovod's
own wait has no time limit, and the wait of torch.distributed ends the process group when its limit
is reached. Therefore ``sleep_until`` polls instead."""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_sparse.errors import ExchangeTimeout

SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 2e-5, 5e-4


def sleep_until(is_done: Callable[[], bool], limit_s: float | None) -> bool:
    """Poll ``is_done`` until it returns True; return False if the time limit passes first."""
    deadline = None if limit_s is None else time.monotonic() + limit_s
    sleep_s = SHORTEST_SLEEP_S
    while not is_done():
        if deadline is not None and time.monotonic() > deadline:
            return False
        time.sleep(sleep_s)
        # Sleep briefly at first, because most results arrive soon.
        sleep_s = min(2 * sleep_s, LONGEST_SLEEP_S)
    return True


def unfinished(library: str, name: str, timeout_s: float | None) -> ExchangeTimeout:
    return ExchangeTimeout(
        f"{library}'s {name!r} did not finish in {timeout_s} s: some rank has not submitted it or "
        "has stopped; look at the ranks' output, or raise timeout_s"
    )
