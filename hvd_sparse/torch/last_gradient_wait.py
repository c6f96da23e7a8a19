"""Sleeps at a step's last gradient until the other ranks have sent theirs, to leave the core free.

Horovod's own wait at the end of a step polls, and takes time from other processes on the core, for
example other ranks or data loaders. So the compressor sleeps until its exchanges are done before it
submits the last gradient.

That must not hold up a rank for which others wait: one that is to take part in some other
collective before its optimizer's step, say, while they still lack a gradient.  So a rest is short,
and after one that was in vain the next steps have none.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hvd_sparse.collectives import sleep_until

LONGEST_S = 1.0
PATIENCE = 4.0
"""Times as long as the step's gradients took to come: other ranks may share this one's cores."""
MOST_SKIPPED = 64
"""Steps without a rest after one that was in vain; 1 after the first, then twice as many each
time."""


class LastGradientWait:
    """Waits at a step's last gradient, not for much longer than its gradients took to come."""

    def __init__(self) -> None:
        self._skipped = self._to_skip = 0

    def take(self, is_done: Callable[[], bool], began_s: float) -> None:
        """Sleep until the other ranks have come as far, or until the time limit.

        began_s : time of the step's first gradient, by ``time.monotonic``
        """
        if self._to_skip:
            self._to_skip -= 1
        elif sleep_until(is_done, min(LONGEST_S, PATIENCE * (time.monotonic() - began_s))):
            self._skipped = 0
        else:
            self._skipped = min(MOST_SKIPPED, max(1, 2 * self._skipped))
            self._to_skip = self._skipped
