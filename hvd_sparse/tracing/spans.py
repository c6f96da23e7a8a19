"""Spans: the times at which the parts of a step begin and end, told to listeners.

Listeners are the run-time planner and timelines.  While there are none the clock is not read, so
that spans cost nothing.
"""

from __future__ import annotations

import time
from typing import Callable

Listener = Callable[[str, str, float, float], None]
"""A function of a span: its kind ("select", "encode", "exchange" or "decode"), the name of the
tensor or bucket, its start and its end in seconds of ``Spans.clock``.  In TensorFlow it is
called from several threads."""


class Spans:
    """The listeners to the spans of one compressor.

    Attributes
    ----------
    clock : gives the seconds that listeners are told; ``time.thread_time`` tells what a thread
        worked rather than how long it took, for a listener that is alone and compares no threads
    is_heard : somebody listens
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._listeners: tuple[Listener, ...] = ()
        self.is_heard = False

    def add(self, listener: Listener) -> None:
        """Add a listener; it is told every span that begins from now on."""
        self._listeners = (*self._listeners, listener)
        self.is_heard = True

    def remove(self, listener: Listener) -> None:
        """Remove a listener, if it is there."""
        self._listeners = tuple(each for each in self._listeners if each != listener)
        self.is_heard = bool(self._listeners)

    def now(self) -> float:
        """Return the time for ``tell`` at which a span begins; 0 while there is no listener."""
        return self.clock() if self._listeners else 0.0

    def tell(self, what: str, whose: str, start_s: float) -> None:
        """Tell the listeners that a span has ended.

        Parameters
        ----------
        what : kind of the span
        whose : name of the tensor or bucket
        start_s : ``now()`` at its begin; a span that began while there was no listener is not told
        """
        if self._listeners and start_s:
            end_s = self.clock()
            for listener in self._listeners:
                listener(what, whose, start_s, end_s)
