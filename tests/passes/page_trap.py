"""Counts passes over arrays by page faults. Compiles ``page_trap.c`` and connects it with numpy."""

import ctypes
import resource
import subprocess
from pathlib import Path

from harness import LIMIT_S

SOURCE = Path(__file__).with_name("page_trap.c")
PAGE = 4096
THP_DISABLE = 41
"""``PR_SET_THP_DISABLE``: without huge pages, new memory is counted in small pages."""


def compile_trap(folder):
    library = folder / "page_trap.so"
    flags = ["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-pthread"]
    subprocess.run(["cc", *flags, "-o", library, SOURCE], check=True, timeout=LIMIT_S)
    return library


class PageTrap:
    """Counts the passes over given arrays. Only the ``PageTrap`` that was created last works.

    ``passes(work)`` returns for every array how often all its pages were read, and how often they
    were written.
    """

    def __init__(self, library, arrays):
        ctypes.CDLL(None).prctl(THP_DISABLE, 1, 0, 0, 0)
        self._library = ctypes.CDLL(str(library))
        self._library.trap_watch.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self._library.trap_reads.restype = self._library.trap_writes.restype = ctypes.c_double
        self._library.trap_forget()
        self._numbers = {
            name: self._library.trap_watch(x.ctypes.data, x.nbytes) for name, x in arrays.items()
        }
        assert -1 not in self._numbers.values()

    def passes(self, work):
        assert self._library.trap_arm() == 0
        try:
            work()
        finally:
            self._library.trap_disarm()
        return {
            name: {"reads": self._library.trap_reads(i), "writes": self._library.trap_writes(i)}
            for name, i in self._numbers.items()
        }


def fresh_bytes(work):
    """Return the bytes that ``work`` touches for the first time, from the kernel's page faults."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    work()
    return PAGE * (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
