"""Worker, under horovodrun: measures how long an allgather on the device takes while work of the
program is queued there.

Horovod allocates the results on the default stream, and waits for the work that is queued on it.
Reports the seconds by the stream of the queued work: none, the default stream, or one of the
program's own. The pretend device does not queue work, so there the three times are nearly equal.
"""

import time

import horovod.torch as hvd
import numpy as np
import torch
from _device import DEVICE, can_carry, device_wire, is_pretend
from harness import report

from hvd_sparse.collectives.horovod_torch import HorovodDeviceCollective

BUSY_S = 1.0
TRIED = 10**8
REPEATS = 3


def cycles():
    torch.cuda._sleep(TRIED)
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(TRIED)
    torch.cuda.synchronize()
    return int(TRIED * BUSY_S / (time.perf_counter() - start))


def gather_s(wire, name, busy, stream):
    hvd.barrier()
    if busy:
        with torch.cuda.stream(stream):
            torch.cuda._sleep(busy)
    start = time.perf_counter()
    wire.allgather(np.arange(1000, dtype=np.uint8), name).wait(None)
    taken = time.perf_counter() - start
    torch.accelerator.synchronize()
    return taken


def main():
    found = {}
    if can_carry():
        with device_wire():
            wire = HorovodDeviceCollective(hvd.global_process_set, DEVICE)
            busy = 0 if is_pretend else cycles()
            default = torch.get_device_module(DEVICE).default_stream(DEVICE)
            own = torch.Stream(DEVICE) if is_pretend else torch.cuda.Stream(DEVICE)
            gather_s(wire, "stall", 0, default)  # which allocates, and makes communicators
            for where, work, stream in (
                ("idle", 0, default),
                ("default", busy, default),
                ("own", busy, own),
            ):
                taken = [gather_s(wire, "stall", work, stream) for _ in range(REPEATS)]
                found[where] = sorted(taken)[REPEATS // 2]
    report(hvd.rank(), {"busy": BUSY_S, "gathers": found})
    hvd.barrier()
    hvd.shutdown()


if __name__ == "__main__":
    main()
