"""Tools for cases that compare runs on the CPU with runs on a device.

There are two wires: messages are sent from the host's memory, or by Horovod's operations on the
device. ``HVD_SPARSE_TEST_DEVICE=cuda`` selects a GPU (one for each rank, if there are several), for
``scripts/gpu-check``; ``HVD_SPARSE_TEST_ENGINE`` selects its engine. Importing this module starts
Horovod.
"""

import os
import sys
from contextlib import contextmanager, nullcontext

import horovod.torch as hvd
import torch
from _common import SPARSE_ONLY, Cases
from _method_cases import SHAPES, STAYING, STEPS, compressor_of, gradients_of
from _torch_cases import digest_of, give_gradients, optimizer_without_motion
from devices import carried, pretend
from torch import nn

from hvd_sparse.configuration import PARTS
from hvd_sparse.torch import Compression

NAME = os.environ.get("HVD_SPARSE_TEST_DEVICE", pretend.NAME)
CPU = torch.device("cpu")
EARLY = os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION", "0")
is_pretend = NAME == pretend.NAME
cases = Cases()

IN_A_SET = sys.argv[1:] == ["set"]
if IN_A_SET:
    os.environ["HOROVOD_DYNAMIC_PROCESS_SETS"] = "1"  # before Horovod is started
process_sets = [hvd.ProcessSet([rank]) for rank in range(2)]
hvd.init(process_sets=process_sets)
if is_pretend:
    DEVICE = pretend.load()
else:
    DEVICE = torch.device(NAME, hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(DEVICE)
    if torch.cuda.device_count() < hvd.local_size():
        # NCCL refuses two ranks on one GPU of one host; of two hosts it does not ask
        os.environ["NCCL_HOSTID"] = f"rank {hvd.rank()}"
        os.environ["NCCL_SOCKET_IFNAME"] = "lo"


def engine_on(device):
    engine = os.environ.get("HVD_SPARSE_TEST_ENGINE")
    return {} if engine is None or device == CPU else {"engine": engine}


def home(device):
    """Return the device on which a model computes its gradients, and the options for the engine.

    A GPU rounds a model's own gradients differently than the CPU. So with a GPU, a run "on the CPU"
    computes gradients on the GPU, too, and copies them to the host.
    """
    if device == CPU and not is_pretend:
        return DEVICE, {"engine": "numpy"}
    return device, engine_on(device)


def nothing(*_):
    return 0


# A GPU is as late as it is, and counts nothing.
late, reused, waited = (
    each if is_pretend else nothing for each in (pretend.late, pretend.reused, pretend.waits)
)


def on_both(run):
    """Return a case that runs a function on the CPU, and on the device with both wires."""

    def case(name):
        late(False)
        with without_nccl():
            expected = run(f"{name}.cpu", CPU)
        late(True)
        before = reused()
        with without_nccl():
            outcome = {"expected": expected, "found": run(f"{name}.device", DEVICE)}
        if can_carry():
            with device_wire():
                outcome["carried"] = run(f"{name}.wire", DEVICE)
        late(False)
        assert reused() == before, "a pinned buffer was changed before the device had read it"
        return outcome

    return case


def can_carry():
    """Return whether Horovod can reduce tensors of the device, by NCCL or on the pretend device."""
    return is_pretend or bool(hvd.nccl_built())


def device_wire():
    """While the block runs, Horovod reduces tensors of the device, as it does with NCCL."""
    return carried.carrying() if is_pretend else nullcontext()


@contextmanager
def without_nccl():
    """While the block runs, Horovod reports that it was built without NCCL."""
    own, hvd.nccl_built = hvd.nccl_built, lambda: False
    try:
        yield
    finally:
        hvd.nccl_built = own


def law(run):
    cases[run.__name__] = on_both(run)
    return run


def with_gradients(name, device, compressor, parameters, dtype):
    optimizer = optimizer_without_motion(parameters, compressor)
    applied, waits, in_backward = [], [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        drawn = [torch.from_numpy(each) for each in gradients_of(hvd.rank(), step)]
        chosen = {p: g.to(dtype).to(device) for p, g in zip(parameters.values(), drawn)}
        before = waited()
        give_gradients(chosen)
        in_backward.append(waited() - before)
        optimizer.step()
        waits.append(waited() - before)
        applied += [parameter.grad.cpu() for parameter in parameters.values()]
    stats = compressor.stats()
    found = {
        "applied": digest_of(applied),
        "ways": sorted(set(stats["ways"].values())),
        "wire": stats["wire"],
        "because": sorted(set(stats["staged_because"].values())),
        "parts": parts_of(compressor.configuration),
    }
    compressor.close()
    return found | {
        "waits": min(waits),  # of a step that found all it needs in its first pass
        "in_backward": max(in_backward),
        "is_finite": bool(torch.cat([a.flatten() for a in applied]).isfinite().all()),
    }


def parts_of(configuration):
    return [f"{kind} {getattr(configuration, kind).id}" for kind in PARTS if kind != "schedule"]


def method(case, **options):
    def run(name, device):
        parameters = {
            f"t{i}": nn.Parameter(torch.zeros(shape, device=device))
            for i, shape in enumerate(SHAPES)
        }
        given = {**engine_on(device), **SPARSE_ONLY, **options, "name": name}
        if case in STAYING:
            compressor = Compression.build(parameters.items(), **STAYING[case], **given)
        else:
            compressor = compressor_of(Compression, case, parameters.items(), **given)
        return with_gradients(name, device, compressor, parameters, torch.float32)

    return run
