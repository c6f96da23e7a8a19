"""Ends a process that waits forever, or whose program ended with an error.

Horovod shuts down at the interpreter's exit, and waits there for the other ranks. Under MPI that
wait may never end if an error left a rank in an exchange, so ``prepare_end`` limits it.
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
"""Exit status of an ended process, the same as that of timeout(1)."""
END_S = 10
"""Seconds that Horovod's shutdown may take after an error of this package."""
LAST_ANSWERS_S = 1.0
"""Seconds for which a process that is about to end still answers, because other ranks' limits end
at about the same time and must not find this rank gone."""


def say_and_exit(words: str) -> None:
    """Write text to standard error and end the process, whatever its other threads do."""
    # Not through Python's files and handlers, because another thread may hold their locks forever.
    os.write(2, (words + "\n").encode())
    time.sleep(LAST_ANSWERS_S)
    os._exit(EXIT_CODE)


# Once per process, after hvd.init: functions registered last run first, so before Horovod's
# shutdown.
@lru_cache(maxsize=1)
def prepare_end() -> None:
    """Prepare the interpreter's exit after an error.

    Horovod's shutdown gets ``END_S`` seconds after an error of this package. After a failed
    ``hvd.join()`` the reason is printed, because Horovod's error does not contain it.
    """
    atexit.register(_at_exit)


def _at_exit() -> None:
    if was_ended_by_join():
        sys.stderr.write(f"hvd_sparse: {JOIN_REASON}\n")
        sys.stderr.flush()
    elif not isinstance(getattr(sys, "last_value", None), SparseError):
        return
    if threading.current_thread() is threading.main_thread():
        # An alarm is the only timer that needs neither a thread nor Python's lock.
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
