"""Spans: begin and end of the parts of a step, passed to listeners (the planner and timelines)."""

from __future__ import annotations

import time
from collections.abc import Callable

Listener = Callable[[str, str, float, float], None]
"""A function of a span: its kind ("select", "encode", "exchange" or "decode"), the name of the
tensor or bucket, its start and its end in seconds of ``Spans.clock``.  In TensorFlow it is
called from several threads."""


class Spans:
    """The listeners to one compressor's spans; without listeners the clock is not read.

    ``clock`` returns the seconds; ``time.thread_time`` gives a thread's CPU time instead of elapsed
    time, for a single listener that compares no threads.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._listeners: tuple[Listener, ...] = ()
        self.is_heard = False

    def add(self, listener: Listener) -> None:
        self._listeners = (*self._listeners, listener)
        self.is_heard = True

    def remove(self, listener: Listener) -> None:
        self._listeners = tuple(each for each in self._listeners if each != listener)
        self.is_heard = bool(self._listeners)

    def now(self) -> float:
        """Return the start time of a span for ``tell``; 0 while there is no listener."""
        return self.clock() if self._listeners else 0.0

    def tell(self, what: str, whose: str, start_s: float) -> None:
        """Pass a finished span to the listeners, if there were any when it began at ``start_s``."""
        if self._listeners and start_s:
            end_s = self.clock()
            for listener in self._listeners:
                listener(what, whose, start_s, end_s)
