"""When a step's parts of the work begin and end, for whoever wants to know: the run-time planner,
and timelines.

Nobody asks the clock while nobody listens.
"""

from __future__ import annotations

import time
from typing import Callable

Listener = Callable[[str, str, float, float], None]
"""Is told what was done ("select", "encode", "exchange" or "decode"), of which tensor or bucket,
and when: from and to, in seconds of ``Spans.clock``.  In TensorFlow from several threads."""


class Spans:
    """The listeners of one compressor.

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
        """Tell it from now on."""
        self._listeners = (*self._listeners, listener)
        self.is_heard = True

    def remove(self, listener: Listener) -> None:
        """Tell it no more; nothing if it never was told."""
        self._listeners = tuple(each for each in self._listeners if each != listener)
        self.is_heard = bool(self._listeners)

    def now(self) -> float:
        """For ``tell``, when something begins; 0 while nobody listens."""
        return self.clock() if self._listeners else 0.0

    def tell(self, what: str, whose: str, start_s: float) -> None:
        """Something that began at ``start_s`` is over; not told if it began before anybody
        listened."""
        if self._listeners and start_s:
            end_s = self.clock()
            for listener in self._listeners:
                listener(what, whose, start_s, end_s)
