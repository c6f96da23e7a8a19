"""Loaded before the program of every Python process in a launch of the tests. A process writes the
stacks of its threads if it dies of a signal, or if the harness asks for them.

The file is in the launch's folder and named after the rank and the process number. It contains the
Python stacks of all threads and, if there is a C compiler, the native stack of the thread that
died.
"""

import ctypes
import faulthandler
import os
import signal

FOLDER = os.environ.get("HVD_SPARSE_TEST_RESULTS")
NATIVE = os.environ.get("HVD_SPARSE_TEST_NATIVE_STACKS")
RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "RANK")

if FOLDER is not None and os.path.isdir(FOLDER):
    rank = next((os.environ[name] for name in RANKS if name in os.environ), "launcher")
    stream = open(os.path.join(FOLDER, f"{rank}.{os.getpid()}.stacks"), "w")  # noqa: SIM115
    faulthandler.disable()
    if NATIVE:  # first, as faulthandler hands over to whoever was there before it
        ctypes.CDLL(NATIVE).write_native_stacks(stream.fileno())
    faulthandler.enable(stream)
    faulthandler.register(signal.SIGUSR1, stream)
