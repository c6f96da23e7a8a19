"""A clock that counts the seconds in which this process ran.

The system's clocks continue while a process is suspended (Ctrl-Z, a scheduler's freeze), and while
one thread holds Python's lock. Such a wait is no other rank's fault, so time limits count the
seconds of this clock. A thread reads the system's clock every ``TURN_S`` seconds, and at most
``MOST_S`` seconds count between two readings.
"""

from __future__ import annotations

import threading
import time

TURN_S = 0.25
"""Seconds between two readings: the most by which this clock is behind."""
MOST_S = 1.0
"""Seconds that count at most between two readings."""


class RunningClock:
    """A clock of this process.

    Attributes
    ----------
    now_s : seconds counted so far
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the clock, unless it runs; a forked child must start its own clock."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(
                    target=self._run, name="hvd_sparse clock", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        read_s = time.monotonic()
        while True:
            time.sleep(TURN_S)
            last_s, read_s = read_s, time.monotonic()
            self.now_s += min(read_s - last_s, MOST_S)


clock = RunningClock()
