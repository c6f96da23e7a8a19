"""Worker, under torchrun: DistributedDataParallel's gradients on the pretend device, beside the
same on the CPU; without Horovod.

``ddp_devices.py [alone]``: ``alone`` has a process group that takes tensors of the device only, as
NCCL's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import _ddp_on_device
import torch
import torch.distributed as dist
from _common import Cases, run_cases
from _ddp_cases import SMALL_BUCKETS, digest_of
from devices import pretend
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register

STEPS = 5
cases = Cases()


def train(
    place: torch.device, name: str, method: str, spoilt: int, ddp: dict[str, Any], **options: Any
) -> dict[str, Any]:
    """Train a little; return what came of it."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 5)).to(place)
    wrapped = DistributedDataParallel(model, **ddp)
    name = f"{name}.{place.type}"
    compressor = register(wrapped, method, density=0.1, name=name, min_numel=40, **options)
    descent, finite = torch.optim.SGD(wrapped.parameters(), lr=0.1), []
    for step in range(STEPS):
        descent.zero_grad()
        draw = torch.Generator().manual_seed(10 * step + dist.get_rank())
        loss = wrapped(torch.randn(8, 20, generator=draw).to(place)).square().mean()
        (loss * (float("nan") if step == spoilt and dist.get_rank() == 1 else 1.0)).backward()
        gradients = [parameter.grad.cpu() for parameter in model.parameters()]
        finite.append(all(bool(each.isfinite().all()) for each in gradients))
        if finite[-1]:
            descent.step()
    stats = compressor.stats()
    compressor.close()
    return {
        "applied": digest_of(parameter.cpu() for parameter in model.parameters()),
        "finite": finite,
        "ways": sorted(set(stats["ways"].values())),
        "because": sorted(set(stats["staged_because"].values())),
    }


def on_both(method: str, spoilt: int = -1, ddp: Any = None, **options: Any) -> Callable[[str], Any]:
    def case(name: str) -> dict[str, Any]:
        expected = train(torch.device("cpu"), name, method, spoilt, ddp or {}, **options)
        pretend.late(True)
        before = pretend.reused()
        found = train(DEVICE, name, method, spoilt, ddp or {}, **options)
        pretend.late(False)
        assert pretend.reused() == before, "a pinned buffer was changed too early"
        return {"expected": expected, "found": found}

    return case


cases["topk"] = on_both("topk")
cases["ldte_bs"] = on_both("ldte_bs")
cases["small_buckets"] = on_both("topk", ddp=SMALL_BUCKETS)
cases["bucket_view"] = on_both("topk", ddp={"gradient_as_bucket_view": True})
cases["oktopk"] = on_both("oktopk")
cases["nan"] = on_both("topk", spoilt=2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    DEVICE = _ddp_on_device.start(alone="alone" in sys.argv[1:])
    run_cases(cases, dist.get_rank(), dist.barrier)
