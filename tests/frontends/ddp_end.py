"""Worker, under torchrun: FSDP2's hook, and the end of a process while a collective is running."""

from datetime import timedelta

import torch
import torch.distributed as dist
from harness import LIMIT_S, report
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

import hvd_sparse.ddp

ENTRIES = 1_000_000
"""Number of entries of the last collective, which takes some milliseconds."""


def handed(shape, names):
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    model, bare = nn.Linear(4, 2, bias=False), nn.Linear(4, 2, bias=False)
    bare.load_state_dict(model.state_dict())
    fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    seen = []
    model.set_all_reduce_hook(lambda gradient: seen.append(gradient.clone()))
    inputs = torch.full((1, 4), 1.0 + dist.get_rank())
    model(inputs).sum().backward()
    bare(inputs).sum().backward()
    (hooked,) = seen
    applied = model.weight.grad.to_local().flatten()
    return {
        "hooked": hooked.flatten().tolist(),
        "own": bare.weight.grad.flatten().tolist(),
        "applied": applied.tolist(),
    }


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=LIMIT_S))
    found = {"replicated": handed((2, 1), ("replicate", "shard"))}
    found["sharded"] = handed((2,), ("shard",))
    model = DistributedDataParallel(nn.Linear(64, 64))
    hvd_sparse.ddp.register(model, "ldte_bs", density=0.1, min_numel=1)
    model(torch.ones(2, 64)).sum().backward()
    report(dist.get_rank(), found)
    # Nobody waits for it, so every end is as close as a slow machine makes some.
    dist.all_reduce(torch.ones(ENTRIES), async_op=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
