"""The stack of the main thread: the line it is at, and whether it is in ``hvd.join()``.

Horovod shuts itself down at the interpreter's exit, and waits there for the other ranks.  Under MPI
that wait may never end if an error left one of them in an exchange; ``prepare_end`` bounds it.
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import re
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple

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
    str(Path(__file__).resolve().parents[1]),
    "<",
)
"""Beginnings of the file names that are not the user's own."""
END_S = 10
"""Seconds that Horovod's shutdown may take after an error of this package."""


_LINE = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Line(NamedTuple):
    """A line of a program that a thread is at, or has called from."""

    file: str
    number: int
    function: str


def lines_of_main_thread() -> list[Line]:
    """Return the lines of the main thread's stack, innermost first.

    They are read by faulthandler, which makes no objects, because frame objects of a running thread
    are not safe: CPython 3.11 may collect garbage while it makes one for ``f_back``, and if a
    finalizer lets the thread run on, its frame is gone: a segmentation fault.

    Returns
    -------
    list of Line
        Empty where the process has no file descriptor left, or more than 100 threads, which are the
        most that faulthandler reads.
    """
    try:
        with _memory_file() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            text = file.read().decode()
    except OSError:
        return []
    head = re.search(rf"hread 0x0*{threading.main_thread().ident:x} .*\n", text)
    stack = text[head.end() :].partition("\n\n")[0] if head else ""
    return [Line(file, int(number), name) for file, number, name in _LINE.findall(stack)]


def _memory_file() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        return open(os.memfd_create("hvd_sparse stack"), "w+b")
    return tempfile.TemporaryFile()


def place_of(lines: Sequence[Line]) -> str:
    """Return the main thread's innermost line, and the innermost one in the user's own files."""
    if not lines:
        return "no frame of its main thread"
    own = next((line for line in lines if not line.file.startswith(LIBRARIES)), lines[0])
    places = [lines[0]] if own is lines[0] else [lines[0], own]
    return ", called by ".join(f"{file}:{number} ({name})" for file, number, name in places)


def is_in_join(lines: Sequence[Line]) -> bool:
    """Tell whether the main thread is inside ``hvd.join()``."""
    return any(_is_join(line.file, line.function) for line in lines)


def _is_join(file: str, function: str) -> bool:
    folders = getattr(sys.modules.get("horovod"), "__path__", ())
    return function == "join" and any(file.startswith(each + os.sep) for each in folders)


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
        code = trace.tb_frame.f_code
        if _is_join(code.co_filename, code.co_name):
            return True
        trace = trace.tb_next
    return False
