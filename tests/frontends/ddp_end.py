"""Worker, under torchrun: the end of a process while a collective is running."""

from datetime import timedelta

import torch
import torch.distributed as dist
from harness import LIMIT_S, report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import hvd_sparse.ddp

ENTRIES = 1_000_000
"""Number of entries of the last collective, which takes some milliseconds."""


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    model = DistributedDataParallel(nn.Linear(64, 64))
    hvd_sparse.ddp.register(model, "ldte_bs", density=0.1, min_numel=1)
    model(torch.ones(2, 64)).sum().backward()
    report(dist.get_rank(), "here")
    # Nobody waits for it, so every end is as close as a slow machine makes some.
    dist.all_reduce(torch.ones(ENTRIES), async_op=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
