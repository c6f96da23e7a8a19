"""Which tensors this rank has submitted and not got back, and since when."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping

from hvd_sparse.resilience.awake import awake_s


class Ledger:
    """Submissions by name.  Safe to call from many threads.

    Ranks are compared by how often each has submitted a name: names and order are the same on all
    of them.  Ages are of the seconds in which this process ran.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._waits = 0
        self._last_change = awake_s()

    def begin(self, name: str) -> None:
        """This rank submits a tensor."""
        with self._lock:
            self._counts[name] += 1
            self._since[name] = self._last_change = awake_s()

    def end(self, name: str) -> None:
        """Its result is there."""
        with self._lock:
            self._since.pop(name, None)
            self._last_change = awake_s()

    def clear(self) -> None:
        """The step has failed: nothing is waited for any more."""
        with self._lock:
            self._since.clear()
            self._last_change = awake_s()

    def restart(self) -> None:
        """As before the first submission, for a new world."""
        with self._lock:
            self._counts.clear()
            self._since.clear()
            self._last_change = awake_s()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Inside, this rank waits where a time limit raises an error by itself."""
        self.begin_wait()
        try:
            yield
        finally:
            self.end_wait()

    def begin_wait(self) -> None:
        """Begin what ``waiting`` is for, where every call counts."""
        with self._lock:
            self._waits += 1

    def end_wait(self) -> None:
        """End it."""
        with self._lock:
            self._waits -= 1

    @property
    def is_waiting(self) -> bool:
        return self._waits > 0

    @property
    def idle_s(self) -> float:
        """Seconds since anything was submitted or came back."""
        return awake_s() - self._last_change

    @property
    def has_begun(self) -> bool:
        return bool(self._counts)

    def pending(self, older_than_s: float = 0.0) -> dict[str, int]:
        """Names that are waited for, the longest first, with how often each has been submitted."""
        now = awake_s()
        with self._lock:
            old = sorted(
                (since, name) for name, since in self._since.items() if now - since >= older_than_s
            )
            return {name: self._counts[name] for _, name in old}

    def oldest_s(self) -> float:
        """Seconds that the longest-pending tensor has been waited for; 0 without any."""
        with self._lock:
            return awake_s() - min(self._since.values()) if self._since else 0.0

    def behind(self, counts: Mapping[str, int]) -> list[str]:
        """The names that another rank has submitted more often than this one."""
        with self._lock:
            return [name for name, count in counts.items() if self._counts[name] < count]
