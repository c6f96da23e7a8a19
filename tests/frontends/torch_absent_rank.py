"""Worker: the last rank stops calling.  Argument: the step, from 0, at which it is no longer
there."""

from __future__ import annotations

import os
import sys
import time

import horovod.torch as hvd
from _torch_fault_tools import compress, last_rank, optimize, raised_by, small_model, step_of
from harness import report

TIMEOUT_S = 3.0


def main() -> None:
    hvd.init()
    absent_from = int(sys.argv[1])
    model = small_model()
    step = step_of(
        model,
        optimize(model, compress(model.named_parameters(), name="absent", timeout_s=TIMEOUT_S)),
    )
    for _ in range(absent_from):
        step()
    if last_rank():
        report(hvd.rank(), "absent")
        time.sleep(4 * TIMEOUT_S)
    else:
        report(hvd.rank(), raised_by(step))
    os._exit(1)  # after an error, and without waiting for a rank that is not there


if __name__ == "__main__":
    main()
