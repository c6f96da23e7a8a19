"""The ledger of the tensors that this rank has submitted and not got back."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from time import monotonic

from hvd_sparse.watch.awake_clock import age_s, watch_clock


class Ledger:
    """Counts of submissions by name, and the time of each that is pending.

    Safe to call from many threads.  Ranks compare how often each has submitted a name, as names and
    their order are the same on all of them.  Ages count the seconds in which this process ran;
    moments are the system's clock's, which costs less at every tensor.
    """

    def __init__(self) -> None:
        watch_clock()
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._since: dict[str, float] = {}
        self._waits = 0
        self._last_change = monotonic()

    def begin(self, name: str) -> None:
        """Note that this rank submits a tensor."""
        with self._lock:
            self._counts[name] += 1
            self._since[name] = self._last_change = monotonic()

    def end(self, name: str) -> None:
        """Note that the result of a tensor is there."""
        with self._lock:
            self._since.pop(name, None)
            self._last_change = monotonic()

    def clear(self) -> None:
        """Forget the pending tensors, as the step has failed; the counts stay."""
        with self._lock:
            self._since.clear()
            self._last_change = monotonic()

    def restart(self) -> None:
        """Forget everything, as before the first submission, for a new world."""
        with self._lock:
            self._counts.clear()
            self._since.clear()
            self._last_change = monotonic()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Return a context in which this rank waits under a time limit that raises by itself."""
        self.begin_wait()
        try:
            yield
        finally:
            self.end_wait()

    def begin_wait(self) -> None:
        """Begin what ``waiting`` is for, where every call counts."""
        with self._lock:
            self._waits += 1

    def end_wait(self, name: str | None = None) -> None:
        """End it; note that the result of a tensor is there, where one is named."""
        with self._lock:
            self._waits -= 1
            if name is not None:
                self._since.pop(name, None)
                self._last_change = monotonic()

    @property
    def is_waiting(self) -> bool:
        """Tell whether some thread is inside ``waiting``."""
        return self._waits > 0

    @property
    def idle_s(self) -> float:
        """Return the seconds since a tensor was submitted or came back."""
        return age_s(self._last_change)

    @property
    def has_begun(self) -> bool:
        """Tell whether a tensor was ever submitted in this world."""
        return bool(self._counts)

    def pending(self, older_than_s: float = 0.0) -> dict[str, int]:
        """Return the pending names, oldest first, with how often each has been submitted.

        Parameters
        ----------
        older_than_s : seconds; names that were submitted later are left out
        """
        with self._lock:
            old = sorted(
                (since, name)
                for name, since in self._since.items()
                if not older_than_s or age_s(since) >= older_than_s
            )
            return {name: self._counts[name] for _, name in old}

    def oldest_s(self) -> float:
        """Return the age of the oldest pending tensor in seconds; 0 if none is pending."""
        with self._lock:
            return age_s(min(self._since.values())) if self._since else 0.0

    def behind(self, counts: Mapping[str, int]) -> list[str]:
        """Return the names that another rank has submitted more often than this one.

        Parameters
        ----------
        counts : the other rank's submissions by name
        """
        with self._lock:
            return [name for name, count in counts.items() if self._counts[name] < count]
