"""Checks that the main thread's stack can be read without its cooperation and without a crash."""

from programs import run_python

COLLECTING = """
import gc, importlib, os, sys, threading, time

module, _, name = sys.argv[1].rpartition(".")
read = getattr(importlib.import_module(module), name)
turns = 0

class Dropped:
    def __init__(self):
        self.itself = self

    def __del__(self):  # as that of a compressor, which closes a socket: other threads run on
        if threading.current_thread() is reading:
            seen = turns
            while turns == seen:  # until the main thread has left the frames that it was in
                time.sleep(0)
            Dropped()

def read_often():
    for _ in range(50):
        Dropped()
        gc.enable()  # it is here that garbage is collected
        lines = read()
        gc.disable()
        if not lines or lines[-1].function != "<module>":
            sys.stderr.write(f"read a stack without its beginning: {lines}")
            os._exit(1)

def down(depth, *more):
    return depth and down(depth - 1, depth, *more)

sys.setswitchinterval(1e-6)
gc.freeze()
gc.set_threshold(1)
gc.disable()
reading = threading.Thread(target=read_often)
reading.start()
while reading.is_alive():
    down(20)
    down(5, 1, 2)
    turns += 1
"""


ENTERING = """
import ctypes, importlib, os, sys, threading

module, _, name = sys.argv[1].rpartition(".")
read = getattr(importlib.import_module(module), name)
entered, is_over = 0, False

@ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
def enter(_):  # as autograd's and Horovod's threads do, which Python has not made
    global entered
    entered += 1

def come_and_go():
    libc, threads = ctypes.CDLL(None), [ctypes.c_ulong() for _ in range(4)]
    while not is_over:
        for thread in threads:
            assert libc.pthread_create(ctypes.byref(thread), None, enter, None) == 0
        for thread in threads:
            libc.pthread_join(thread, None)

def read_often():
    while not is_over:
        lines = read()
        if not lines or lines[-1].function != "<module>":
            sys.stderr.write(f"read a stack without its beginning: {lines}")
            os._exit(1)

sys.setswitchinterval(1e-5)
working = [threading.Thread(target=each) for each in (come_and_go, come_and_go, read_often)]
for thread in working:
    thread.start()
while entered < 5000 and working[0].is_alive() and working[2].is_alive():
    pass
is_over = True
for thread in working:
    thread.join()
assert entered >= 5000
"""


def check_stack_reading(function):
    """Check a function, given by module and name, while garbage is collected, and while threads
    that Python has not created enter and leave Python."""
    for program in (COLLECTING, ENTERING):
        found = run_python("-X", "faulthandler", "-c", program, function)
        assert found.returncode == 0, f"ended with code {found.returncode}\n{found.stderr}"
