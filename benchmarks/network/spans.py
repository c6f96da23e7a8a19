"""The parts of a step, in elapsed time and in CPU time of the training thread."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

PHASES = ("backward", "select", "encode", "send", "decode")
""""backward" may be a sleep; "send" is the time for which the step waits for the exchange."""


class Spans:
    """Elapsed and CPU seconds by phase. The time of a nested phase counts only in that phase."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.processor: Counter[str] = Counter()
        self._open: list[str] = []
        self._since = self._used = 0.0

    def clear(self) -> None:
        self.seconds.clear()
        self.processor.clear()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def _charge(self) -> None:
        now, used = time.perf_counter(), time.thread_time()
        if self._open:
            self.seconds[self._open[-1]] += now - self._since
            self.processor[self._open[-1]] += used - self._used
        self._since, self._used = now, used

    def wrap(self, owner: Any, attribute: str, name: str) -> None:
        """Replace ``owner.attribute`` by a function that counts its time as phase ``name``."""
        original = getattr(owner, attribute)

        def timed(*arguments: Any, **options: Any) -> Any:
            with self.phase(name):
                return original(*arguments, **options)

        setattr(owner, attribute, timed)
