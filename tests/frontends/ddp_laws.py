"""Worker, under torchrun: DistributedDataParallel with the hook, without Horovod."""

import os
import sys

import _ddp_density_one
import _ddp_laws
import torch
import torch.distributed as dist
from _common import caught, run_cases
from harness import report, slow

from hvd_sparse.ddp import register


def absent_rank(results):
    """Rank 1 runs no backward pass, and the others' error must name it. No case can follow."""
    model = _ddp_laws.chosen(_ddp_laws.WIDE)
    register(model, "topk", density=0.1, name="absent_rank", timeout_s=slow(8.0))
    if dist.get_rank() != 1:
        gradients = _ddp_laws.full_gradients(0)
        results["absent_rank"] = {"measured": caught(lambda: model(gradients).backward())}
    else:
        results["absent_rank"] = {"measured": "absent"}
    report(dist.get_rank(), results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    cases = {**_ddp_density_one.cases, **_ddp_laws.cases}
    if dist.get_world_size() > 2:  # the bits of every method are two ranks' affair
        cases = {name: cases[name] for name in cases if name not in _ddp_laws.OF_METHODS}
    results = run_cases(cases, dist.get_rank(), dist.barrier)
    results["imports"] = {"measured": "horovod" in sys.modules}
    store = dist.distributed_c10d._get_default_store()
    absent_rank(results)
    store.add("ends", 1)
    if dist.get_rank() == 1:  # stays until the others have asked it
        store.wait(["asked"])
    elif dist.get_rank() == 0:
        store.set("asked", "")
    os._exit(0)  # the group has collectives under way that nobody will join
