"""A clock that counts the seconds in which this process ran.

The system's clocks go on while a process is suspended (Ctrl-Z, a scheduler's freeze), and while one
thread holds Python's lock and no other gets on.  No other rank is to blame for such a wait, so time
limits count the seconds of this clock.  A thread reads it every ``TURN_S`` seconds, and of the time
between two readings at most ``MOST_S`` seconds count.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque

TURN_S = 0.25
"""Seconds between two readings by the thread."""
MOST_S = 1.0
"""Seconds that count at most between two readings."""
REMEMBERED = 100
"""Standstills that the clock remembers."""


class AwakeClock:
    """Count the seconds in which the clock is read at least every ``most_s`` seconds.

    Safe to call from many threads.

    Parameters
    ----------
    most_s : seconds that count at most between two readings
    """

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

    def age_s(self, moment_s: float) -> float:
        """Return the seconds that count since a moment of ``time.monotonic``.

        Whoever notes many moments, and seldom asks, reads the system's clock alone.  Standstills
        before the last ``REMEMBERED`` are forgotten, and count.
        """
        self.now()
        with self._lock:
            age_s = self._looked_at_s - moment_s
            for ended_s, stood_s in reversed(self._stood):
                if ended_s <= moment_s:
                    break
                # Of the part behind the moment so much counts as of any other time between looks.
                age_s -= min(stood_s, max(0.0, ended_s - moment_s - self._most_s))
            return max(0.0, age_s)

    def stood_s(self, within_s: float) -> float:
        """Return the uncounted seconds of standstills that ended at most ``within_s`` ago."""
        self.now()
        with self._lock:
            return sum(
                stood_s
                for ended_s, stood_s in self._stood
                if ended_s >= self._looked_at_s - within_s
            )


class _RunningClock:
    """The process's clock, and the thread that reads it."""

    def __init__(self) -> None:
        self.clock = AwakeClock()
        self._lock = threading.Lock()
        self._reader: threading.Thread | None = None
        self.is_still = True

    def start(self) -> None:
        """Start the thread, if it does not run yet."""
        with self._lock:
            if self._reader is None:
                self._reader = threading.Thread(
                    target=self._read, name="hvd_sparse clock", daemon=True
                )
                self._reader.start()
                self.is_still = False

    def _read(self) -> None:
        while True:
            time.sleep(TURN_S)
            self.clock.now()


_running = _RunningClock()


def awake_s() -> float:
    """Return the seconds in which this process ran since the first call."""
    if _running.is_still:
        _running.start()
    return _running.clock.now()


def age_s(moment_s: float) -> float:
    """Return the seconds in which this process ran since a moment of ``time.monotonic``."""
    _running.start()
    return _running.clock.age_s(moment_s)


def watch_clock() -> None:
    """Let the clock be read from now on: standstills before that cannot be told."""
    _running.start()


def stood_s(within_s: float) -> float:
    """Return the seconds of this process's standstills that ended at most ``within_s`` ago."""
    _running.start()
    return _running.clock.stood_s(within_s)


def _start_anew_in_child() -> None:
    # a forked child lacks the thread, and may have inherited a lock that is held
    global _running
    _running = _RunningClock()


os.register_at_fork(after_in_child=_start_anew_in_child)
