"""Worker: a fault of the last rank during training. Arguments: the framework, and the fault."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
from _common import SPARSE_ONLY, caught
from _framework import fw
from harness import LIMIT_S, report, say, slow, wait_for

SHAPES = {"wide": (8, 6), "bias": (6,), "deep": (6, 3)}
GOOD_STEPS = 3
TIMEOUT_S = slow(8.0)
FOR_EVER_S = 3 * LIMIT_S
FEW = 50
# Gloo gives up a paused rank by itself, after 30 s: before the watchdog, on a busy machine.
os.environ["HOROVOD_GLOO_TIMEOUT_SECONDS"] = str(round(FOR_EVER_S))


def stopped():
    os.kill(os.getpid(), signal.SIGSTOP)


def asleep():
    time.sleep(FOR_EVER_S)


def throws():
    raise RuntimeError("the forward pass failed")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def crashes():
    ctypes.string_at(0)


def locked():
    """Hold Python's lock, like a regular expression or a sort. Horovod's thread continues."""
    ctypes.PyDLL(None).sleep(int(FOR_EVER_S))


FAULTS = {f.__name__: f for f in (stopped, asleep, locked, throws, killed, crashes)}


# -- what a job outlives --------------------------------------------------------------------------


def locked_a_while(processes):
    """Hold Python's lock for longer than the time limit, but for less than twice the limit."""
    ctypes.PyDLL(None).usleep(int(1.5e6 * TIMEOUT_S))


def suspended(processes):
    """Suspend all ranks for twice the time limit, while the others wait for the last rank."""
    numbers = " ".join(map(str, processes))
    stopped = f"kill -STOP {numbers}; sleep {2 * TIMEOUT_S}; kill -CONT {numbers}"
    subprocess.Popen(["sh", "-c", f"sleep {TIMEOUT_S / 3}; {stopped}"])
    for _ in range(20):  # of which half come after it
        time.sleep(TIMEOUT_S / 30)


PASSING = {f.__name__: f for f in (locked_a_while, suspended)}


def train(step, fault, steps):
    """Make good steps on every rank, then the fault on the last one, then ``steps`` further steps
    (or endless ones) on all."""
    for _ in range(GOOD_STEPS):
        step()
    if fw.last_rank():
        fault()
    for _ in steps or itertools.count():
        step()


def take_the_first_step(step):
    if fw.last_rank():
        report(fw.hvd.rank(), "absent")
        wait_for("the error")
    else:
        report(fw.hvd.rank(), caught(step))
        say("the error")
    os._exit(1)  # after an error, and without waiting for a rank that is not there


def submit_during_shutdown():
    """Submit a step's carriers and further arrays again and again, under new names. The last rank
    soon shuts Horovod down."""
    rank, is_last = fw.hvd.rank(), fw.last_rank()
    variables = fw.make_variables({str(number): (4,) for number in range(FEW)})
    compressor = fw.Compression.topk(fw.params_of(variables), density=0.5, **SPARSE_ONLY)
    sent = []
    for parameter in variables.values():
        parameter.grad = parameter.detach().clone()
        sent.append(compressor.compress(parameter.grad))

    def submit():
        for number in range(FEW) if is_last else itertools.count():
            fw.hvd.allreduce_async_(sent[number % FEW][0], name=f"carrier {number}")
            compressor.collective.allgather(np.zeros(3), f"array {number}")

    error = caught(submit)
    fw.hvd.shutdown()
    report(rank, error)


def main(what):
    fw.begin(0)
    if what == "shuts_down":
        submit_during_shutdown()
        return
    rank, variables = fw.hvd.rank(), fw.make_variables(SHAPES)
    options = {**SPARSE_ONLY, "density": 0.25, "name": "hangs", "timeout_s": TIMEOUT_S}
    compressor = fw.Compression.topk(fw.params_of(variables), **options)
    step = fw.step_of(compressor, variables, as_function=True)
    fw.summed(1.0, "start")  # a rank that was still importing would meet the short limit
    if what == "never_comes":
        take_the_first_step(step)
    report(rank, "here")
    if what in PASSING:
        processes = fw.hvd.allgather_object(os.getpid(), name="processes")
        train(step, partial(PASSING[what], processes), range(GOOD_STEPS))
        report(rank, compressor.stats()["steps"])
    else:
        alone = {"joins": fw.hvd.join, "saves": partial(compressor.save, os.devnull)}
        train(step, {**FAULTS, **alone}[what], None)


if __name__ == "__main__":
    main(sys.argv[2])
