"""The stack of this process's main thread, read by another thread to see where it waits."""

from __future__ import annotations

import faulthandler
import os
import re
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

LIBRARIES = (
    *(sysconfig.get_paths()[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")),
    str(Path(__file__).resolve().parents[1]),
    "<",
)
"""Prefixes of file names of libraries, which are not the user's code."""
_LINE = re.compile(r'  File "(.*)", line (\d+) in (.*)')


class Line(NamedTuple):
    file: str
    number: int
    function: str


def lines_of_main_thread() -> list[Line]:
    """Return the lines of the main thread's stack, innermost first; none without a free descriptor.

    faulthandler reads them, because frame objects of a running thread are unsafe: CPython 3.11 may
    collect garbage while it creates a frame's ``f_back``, and if a finalizer lets the thread
    continue, the frame is gone and the process crashes.
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
    return any(is_join(line.file, line.function) for line in lines)


def is_join(file: str, function: str) -> bool:
    """Return whether a function of a file is ``hvd.join()``."""
    folders = getattr(sys.modules.get("horovod"), "__path__", ())
    return function == "join" and any(file.startswith(each + os.sep) for each in folders)
