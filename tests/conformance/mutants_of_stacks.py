"""Functions that read the main thread's stack and crash the process.

``walked`` reads the frames while the thread continues. CPython 3.11 creates a frame object for
``f_back`` and may collect garbage at this moment. If a finalizer then lets the thread continue, the
frame may be gone, which CPython does not notice. ``by_faulthandler`` reads the list of all threads
without a lock, while threads of a C++ library enter and leave Python.
"""

import faulthandler
import os
import re
import sys
import threading

from hvd_sparse.watch.watchdog import Line


def walked():
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return [Line(each.f_code.co_filename, each.f_lineno, each.f_code.co_name) for each in frames]


def by_faulthandler():
    with open(os.memfd_create("stack"), "w+b") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        text = file.read().decode()
    head = re.search(rf"hread 0x0*{threading.main_thread().ident:x} .*\n", text)
    stack = text[head.end() :].partition("\n\n")[0] if head else ""
    found = re.findall(r'  File "(.*)", line (\d+) in (.*)', stack)
    return [Line(file, int(number), name) for file, number, name in found]


BROKEN_STACKS = {
    each.__name__: (f"{__name__}.{each.__name__}",)
    for each in (walked, by_faulthandler)
    if sys.version_info[:2] == (3, 11)
}
"""Modules and functions by name. ``walked`` does not crash CPython 3.10, which has a frame object
for every call, nor 3.12, which collects garbage only between two instructions."""
