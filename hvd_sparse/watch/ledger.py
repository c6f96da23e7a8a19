"""The ledger counts the tensors that this rank has submitted and that have not returned.

Its clock counts the seconds in which this process ran: not those in which it is suspended, or one
thread holds Python's lock, because such a wait is no other rank's fault.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping

TURN_S = 0.25
"""Seconds between two readings: the most by which this clock is behind."""
MOST_S = 1.0
"""Seconds that count at most between two readings."""


class RunningClock:
    """A clock of this process; ``now_s`` are the seconds counted so far."""

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


class Ledger:
    """Counts of submissions by name, and the start time of each pending tensor, thread-safe.

    Names and their order are the same on all ranks, so ranks compare the counts.
    """

    def __init__(self) -> None:
        clock.start()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._waits = 0
        self._last_change = clock.now_s
        self.begun = self._begun_before = 0

    def begin(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1
            self.begun += 1
            self._since[name] = self._last_change = clock.now_s

    def end(self, name: str) -> None:
        with self._lock:
            self._since.pop(name, None)
            self._last_change = clock.now_s

    def clear(self) -> None:
        """Remove the pending tensors, because the step has failed; keep the counts."""
        with self._lock:
            self._since.clear()
            self._last_change = clock.now_s

    def restart(self) -> None:
        """Reset everything for a new world."""
        self.clear()
        with self._lock:
            self._counts.clear()
            self._begun_before = self.begun

    def begin_wait(self) -> None:
        """Begin a wait whose own time limit raises an error."""
        with self._lock:
            self._waits += 1

    def end_wait(self, name: str | None = None) -> None:
        """End a wait; if ``name`` is given, the result of that tensor has arrived."""
        with self._lock:
            self._waits -= 1
            if name is not None:
                self._since.pop(name, None)
                self._last_change = clock.now_s

    @property
    def submissions(self) -> int:
        """The number of submissions in this world."""
        return self.begun - self._begun_before

    @property
    def is_waiting(self) -> bool:
        return self._waits > 0

    @property
    def idle_s(self) -> float:
        """The seconds since a tensor was last submitted or returned."""
        return clock.now_s - self._last_change

    def pending(self) -> dict[str, int]:
        """Return the pending names, oldest first, with the submissions of each."""
        with self._lock:
            names = sorted(self._since, key=self._since.__getitem__)
            return {name: self._counts[name] for name in names}

    def oldest(self) -> tuple[str, int, float] | None:
        """Return the oldest pending name, its submissions, and its age in seconds."""
        with self._lock:
            if not self._since:
                return None
            name = min(self._since, key=self._since.__getitem__)
            return name, self._counts[name], clock.now_s - self._since[name]

    def behind(self, counts: Mapping[str, int]) -> list[str]:
        """Return the names that another rank, by its ``counts``, has submitted more often."""
        with self._lock:
            return [name for name, count in counts.items() if self._counts[name] < count]
