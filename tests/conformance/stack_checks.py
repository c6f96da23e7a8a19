"""The check that the main thread's stack is read without its help or harm."""

from __future__ import annotations

from programs import run_python

PROGRAM = """
import gc, importlib, os, sys, threading, time

read = importlib.import_module(sys.argv[1]).lines_of_main_thread
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
        if lines[-1].function != "<module>":
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


def check_stack_reading(module: str) -> None:
    found = run_python("-X", "faulthandler", "-c", PROGRAM, module)
    assert found.returncode == 0, f"ended with code {found.returncode}\n{found.stderr}"
