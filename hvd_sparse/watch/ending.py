"""The end of a process that waits for ever, or whose program ended by an error.

Horovod shuts itself down at the interpreter's exit, and waits there for the other ranks.  Under MPI
that wait may never end if an error left one of them in an exchange; ``prepare_end`` bounds it.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import time
from functools import lru_cache
from types import TracebackType

from hvd_sparse.errors import SparseError
from hvd_sparse.watch.stack import is_join

JOIN_REASON = (
    "hvd.join() cannot be used with hvd_sparse: Horovod hangs or ends every rank when an allgather "
    "that it has cached is left by one of them. Give all ranks equally many batches, for instance "
    "by DistributedSampler(drop_last=True), or dataset.repeat() with steps_per_epoch"
)
EXIT_CODE = 124
"""Exit status of an ended process: that of timeout(1)."""
END_S = 10
"""Seconds that Horovod's shutdown may take after an error of this package."""
LAST_ANSWERS_S = 1.0
"""Seconds for which a process that is about to end still answers.  Other ranks' limits end at about
the same time, and should not find this rank gone."""


def say_and_exit(words: str) -> None:
    """Write the words to standard error and end the process, whatever its other threads do."""
    # Past Python's files and handlers: another thread may hold their locks for ever.
    os.write(2, (words + "\n").encode())
    time.sleep(LAST_ANSWERS_S)
    os._exit(EXIT_CODE)


# once a process; after hvd.init, as functions registered last run first: before Horovod's shutdown
@lru_cache(maxsize=1)
def prepare_end() -> None:
    """Prepare the interpreter's exit after an error.

    Horovod's shutdown gets ``END_S`` seconds after an error of this package, and after a failed
    ``hvd.join()`` the reason is printed, which Horovod's error does not name.
    """
    atexit.register(_at_exit)


def _at_exit() -> None:
    if was_ended_by_join():
        sys.stderr.write(f"hvd_sparse: {JOIN_REASON}\n")
        sys.stderr.flush()
    elif not isinstance(getattr(sys, "last_value", None), SparseError):
        return
    if threading.current_thread() is threading.main_thread():
        # an alarm is the one timer that needs neither a thread nor Python's lock
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(END_S)


def was_ended_by_join() -> bool:
    """Return whether the error that ends this program was raised in ``hvd.join()``."""
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    while trace is not None:
        code = trace.tb_frame.f_code
        if is_join(code.co_filename, code.co_name):
            return True
        trace = trace.tb_next
    return False
