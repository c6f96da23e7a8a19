"""A reading of the main thread's stack that walks its frames while it runs on.

CPython 3.11 makes a frame object for ``f_back``, may collect garbage meanwhile, and does not notice
that the frame is gone when a finalizer has let its thread run on.
"""

from __future__ import annotations

import sys
import threading

from hvd_sparse.watch.watchdog import Line


def lines_of_main_thread() -> list[Line]:
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return [Line(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in frames]


BROKEN_STACKS = (
    {"frames walked": "conformance.mutants_of_stacks"} if sys.version_info[:2] == (3, 11) else {}
)
"""Names of modules.  CPython 3.10 has a frame object for every call, and 3.12 collects garbage
between two instructions alone."""
