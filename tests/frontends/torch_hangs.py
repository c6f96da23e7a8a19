"""Worker: something happens to the last rank in mid-training.  Argument: what."""

from __future__ import annotations

import sys

import horovod.torch as hvd
from _hangs import FAULTS, TIMEOUT_S, train
from _torch_fault_tools import compress, last_rank, optimize, small_model, step_of
from harness import report


def main() -> None:
    hvd.init()
    model = small_model()
    compressor = compress(model.named_parameters(), name="hangs", timeout_s=TIMEOUT_S)
    fault = {**FAULTS, "joins": hvd.join}[sys.argv[1]]
    report(hvd.rank(), "here")
    train(step_of(model, optimize(model, compressor)), last_rank(), fault)


if __name__ == "__main__":
    main()
