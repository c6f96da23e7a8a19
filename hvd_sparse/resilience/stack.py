"""The stack of the main thread: the line it is at, and whether it is in ``hvd.join()``.

Horovod shuts itself down at the interpreter's exit, and waits there for the other ranks.  Under MPI
that wait may never end if an error left one of them in an exchange; ``prepare_end`` bounds it.
"""

from __future__ import annotations

import atexit
import signal
import sys
import sysconfig
import threading
from functools import lru_cache
from types import FrameType, TracebackType

from hvd_sparse.errors import SparseError

JOIN_REASON = (
    "hvd.join() cannot be used with hvd_sparse: Horovod hangs or ends every rank when an allgather "
    "that it has cached "
    "is left by one of them. Give all ranks equally many batches, for instance by "
    "DistributedSampler(drop_last=True), "
    "or dataset.repeat() with steps_per_epoch"
)

LIBRARIES = (
    *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    "<",
)
"""Beginnings of the file names that are not the user's own."""
END_S = 10
"""Seconds that Horovod's shutdown may take after an error of this package."""


def place_of_main_thread() -> str:
    """Return the main thread's innermost line, and the innermost one in the user's own files."""
    frames = _frames_of_main_thread()
    if not frames:
        return "no frame of its main thread"
    own = next(
        (frame for frame in frames if not frame.f_code.co_filename.startswith(LIBRARIES)), frames[0]
    )
    places = [frames[0]] if own is frames[0] else [frames[0], own]
    return ", called by ".join(
        f"{f.f_code.co_filename}:{f.f_lineno} ({f.f_code.co_name})" for f in places
    )


def is_in_join() -> bool:
    """Tell whether the main thread is inside ``hvd.join()``."""
    return any(_is_join(frame) for frame in _frames_of_main_thread())


def _is_join(frame: FrameType) -> bool:
    return frame.f_code.co_name == "join" and str(frame.f_globals.get("__name__")).startswith(
        "horovod."
    )


def _frames_of_main_thread() -> list[FrameType]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


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
    """Tell whether the error that ends this program was raised in ``hvd.join()``."""
    trace: TracebackType | None = getattr(sys, "last_traceback", None)
    while trace is not None:
        if _is_join(trace.tb_frame):
            return True
        trace = trace.tb_next
    return False
