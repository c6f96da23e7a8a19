"""Worker: timelines of a run through Horovod's optimizer.

A launch of its own: while Horovod's timelines are allowed, a thread of every rank asks for events
without a pause, written or not, and takes a core from the ranks.
"""

from __future__ import annotations

import os

import horovod.torch as hvd
from _torch_cases import run_torch_cases
from _torch_timeline import cases

if __name__ == "__main__":
    os.environ["HOROVOD_TIMELINE"] = "DYNAMIC"  # begun by a case
    hvd.init()
    if hvd.size() == 1:
        os.environ["HOROVOD_ELASTIC"] = (
            "1"  # a single rank's optimizer calls its compressor only then
        )
    run_torch_cases(cases)
