"""Worker, under torchrun and without Horovod: compares DistributedDataParallel with gradients on
the pretend device and on the CPU.

``ddp_devices.py [alone]``: with ``alone``, the process group accepts only tensors of the device,
like NCCL's.
"""

import sys

import torch
import torch.distributed as dist
from _common import Cases, run_cases
from _tensors import digest_of
from devices import pretend
from torch import nn
from torch._C._distributed_c10d import _create_work_from_future
from torch.nn.parallel import DistributedDataParallel

from hvd_sparse.ddp import register

STEPS = 5
cases = Cases()
NAME = "carried"


class Carried(dist.ProcessGroup):
    """A process group for the pretend device, which copies tensors to the host and uses Gloo."""

    def __init__(self, store, rank, size, timeout):
        super().__init__(rank, size)
        self._own = dist.ProcessGroupGloo(store, rank, size, timeout)

    @property
    def group_name(self):
        return NAME

    def getBackendName(self):
        return NAME

    def _carry(self, tensors, exchange):
        if all(each.is_cpu for each in tensors):
            return exchange(tensors)
        hosts = [each.cpu() for each in tensors]
        exchange(hosts).wait()
        for tensor, host in zip(tensors, hosts):
            tensor.copy_(host)
        done = torch.futures.Future()
        done.set_result(tensors)
        return _create_work_from_future(done)

    def broadcast(self, tensors, opts=None):
        return self._carry(tensors, lambda given: self._own.broadcast(given, opts))

    def allreduce(self, tensors, opts=None):
        return self._carry(tensors, lambda given: self._own.allreduce(given, opts))

    def allgather(self, outputs, inputs, opts=None):
        (parts,), (mine,) = outputs, inputs

        def exchange(given):
            return self._own.allgather([given[1:]], given[:1], opts)

        return self._carry([mine, *parts], exchange)

    def all_to_all_single(self, output, given, arriving, leaving, opts=None):
        def exchange(tensors):
            return self._own.alltoall_base(*tensors, arriving, leaving, opts)

        return self._carry([output, given], exchange)

    alltoall_base = all_to_all_single
    """The name of ``all_to_all_single`` up to torch 2.12. With only one of the two names, torch
    calls C++ code whose result never reports that it is completed."""

    def barrier(self, opts=None):
        return self._own.barrier(opts)


def start(*, alone):
    device = pretend.load()
    kinds = [pretend.NAME] if alone else ["cpu", pretend.NAME]
    dist.Backend.register_backend(NAME, Carried, devices=kinds)
    dist.init_process_group(NAME)
    return device


def train(place, name, method, spoilt, ddp, **options):
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
    staged = place.type != "cpu"
    assert set(stats["ways"].values()) == {"staged" if staged else "host"}, stats
    assert all("in its own buckets" in why for why in stats["staged_because"].values()), stats
    assert finite == [step != spoilt for step in range(STEPS)], finite
    return digest_of(parameter.cpu() for parameter in model.parameters())


def on_both(method, spoilt=-1, ddp=None, **options):
    def case(name):
        expected = train(torch.device("cpu"), name, method, spoilt, ddp or {}, **options)
        pretend.late(True)
        before = pretend.reused()
        found = train(DEVICE, name, method, spoilt, ddp or {}, **options)
        pretend.late(False)
        assert pretend.reused() == before, "a pinned buffer was changed too early"
        assert found == expected, "other bits than on the CPU"

    return case


cases["topk"] = on_both("topk")
cases["ldte_bs"] = on_both("ldte_bs")
cases["small_buckets"] = on_both("topk", ddp={"bucket_cap_mb": 0.002})
cases["bucket_view"] = on_both("topk", ddp={"gradient_as_bucket_view": True})
cases["oktopk"] = on_both("oktopk")
cases["nan"] = on_both("topk", spoilt=2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    DEVICE = start(alone="alone" in sys.argv[1:])
    run_cases(cases, dist.get_rank(), dist.barrier)
