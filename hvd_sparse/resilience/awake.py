"""Seconds in which this process ran.

The system's clocks go on while a process is suspended (Ctrl-Z, a scheduler's freeze), and while one
thread holds Python's lock and no other gets on.  Nobody can be blamed for a wait of that kind, so
limits count the seconds of this clock: a thread winds it, and of what passes between two turns
``MOST_S`` counts.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

TURN_S = 0.25
MOST_S = 1.0
REMEMBERED = 100
"""Stillstands."""


class AwakeClock:
    """Counts the seconds in which somebody looks at it at least every ``most_s``.  Safe to call
    from many threads."""

    def __init__(self, most_s: float = MOST_S) -> None:
        self._most_s = most_s
        self._lock = threading.Lock()
        self._counted_s = 0.0
        self._looked_at_s = time.monotonic()
        self._stood: deque[tuple[float, float]] = deque(maxlen=REMEMBERED)

    def now(self) -> float:
        """Return the seconds counted so far."""
        with self._lock:
            now_s = time.monotonic()
            passed_s, self._looked_at_s = now_s - self._looked_at_s, now_s
            self._counted_s += min(passed_s, self._most_s)
            if passed_s > self._most_s:
                self._stood.append((now_s, passed_s - self._most_s))
            return self._counted_s

    def stood_s(self, within_s: float) -> float:
        """Return the seconds that were not counted, of stillstands that ended no longer ago than
        that."""
        self.now()
        with self._lock:
            return sum(
                stood_s
                for ended_s, stood_s in self._stood
                if ended_s >= self._looked_at_s - within_s
            )


class _Wound:
    """The process's clock, and the thread that winds it."""

    def __init__(self) -> None:
        self.clock = AwakeClock()
        self._lock = threading.Lock()
        self._winder: threading.Thread | None = None

    def start(self) -> None:
        with self._lock:
            if self._winder is None:
                self._winder = threading.Thread(
                    target=self._wind, name="hvd_sparse clock", daemon=True
                )
                self._winder.start()

    def _wind(self) -> None:
        while True:
            time.sleep(TURN_S)
            self.clock.now()


_wound = _Wound()


def awake_s() -> float:
    """Return the seconds in which this process ran since it first asked."""
    wound = _wound
    if wound._winder is None:  # asked for at every tensor
        wound.start()
    return wound.clock.now()


def stood_s(within_s: float) -> float:
    """Return the seconds in which this process stood still, of stillstands that ended within so
    many."""
    _wound.start()
    return _wound.clock.stood_s(within_s)


def _start_anew_in_child() -> None:
    global _wound
    _wound = _Wound()  # a forked child has not the thread, and may have got a lock that is held


os.register_at_fork(after_in_child=_start_anew_in_child)
