"""A program that ends while Gloo's threads still hold the tensors of its last collective."""

from __future__ import annotations

import torch
import torch.distributed as dist
from harness import report
from torch.nn.parallel import DistributedDataParallel

import hvd_sparse.ddp

ENTRIES = 1_000_000
"""Of the last collective: it travels for some milliseconds."""


def main() -> None:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    hvd_sparse.ddp.register(model, "ldte_bs", density=0.1, min_numel=1)
    model(torch.ones(2, 64)).sum().backward()
    report(dist.get_rank(), {"rank": dist.get_rank()})
    # Nobody waits for it, so every end is as close as a slow machine makes some.
    dist.all_reduce(torch.ones(ENTRIES), async_op=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
