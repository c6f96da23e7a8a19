"""Worker: something happens to the last rank in mid-training.  Argument: what."""

from __future__ import annotations

import os
import sys
from functools import partial

import horovod.torch as hvd
from _hangs import FAULTS, PASSING, TIMEOUT_S, train, train_on
from _torch_fault_tools import compress, last_rank, optimize, small_model, step_of
from harness import report


def main() -> None:
    hvd.init()
    model = small_model()
    compressor = compress(model.named_parameters(), name="hangs", timeout_s=TIMEOUT_S)
    step = step_of(model, optimize(model, compressor))
    hvd.barrier()  # a rank that was still importing would meet the short limit
    report(hvd.rank(), "here")
    if sys.argv[1] in PASSING:
        train_on(step, last_rank(), PASSING[sys.argv[1]], hvd.allgather_object(os.getpid()))
        report(hvd.rank(), compressor.stats()["steps"])
    else:
        alone = {"joins": hvd.join, "saves": partial(compressor.save, os.devnull)}
        train(step, last_rank(), {**FAULTS, **alone}[sys.argv[1]])


if __name__ == "__main__":
    main()
