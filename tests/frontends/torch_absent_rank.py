"""Worker: the last rank stops calling.  Argument: the step, from 0, at which it is no longer
there."""

from __future__ import annotations

import os
import sys

import horovod.torch as hvd
from _torch_fault_tools import compress, last_rank, optimize, raised_by, small_model, step_of
from harness import report, say, slow, wait_for

TIMEOUT_S = slow(3.0)


def main() -> None:
    hvd.init()
    absent_from = int(sys.argv[1])
    model = small_model()
    step = step_of(
        model,
        optimize(model, compress(model.named_parameters(), name="absent", timeout_s=TIMEOUT_S)),
    )
    hvd.barrier()  # a rank that was still importing would be absent, too
    for _ in range(absent_from):
        step()
    if last_rank():
        report(hvd.rank(), "absent")
        wait_for("the error")
    else:
        report(hvd.rank(), raised_by(step))
        say("the error")
    os._exit(1)  # after an error, and without waiting for a rank that is not there


if __name__ == "__main__":
    main()
