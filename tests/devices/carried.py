"""Lets Horovod reduce and gather tensors of the pretend device, as a Horovod with NCCL does for a
GPU.

Horovod chooses its function by a tensor's type. The functions for the pretend device are added
here. They copy the tensors to the host in the current stream of the submitting thread, as with
Horovod's event, and call Horovod's functions for the CPU. After the program has waited for the
handle, they copy the results to the device: at once, or with ``HOROVOD_ENABLE_ASYNC_COMPLETION``
later, in the default stream. All other functions are Horovod's own.
"""

import os
import re
from contextlib import contextmanager

import horovod.torch as hvd
import torch
from devices import pretend
from horovod.torch import mpi_ops

OUTPUT = {"allreduce": 1, "grouped_allreduce": 1, "allgather": 1, "broadcast": 1, "alltoall": 2}
"""Position of the output among an operation's arguments; the input is the first."""
OWN = re.compile(rf"horovod_torch_({'|'.join(OUTPUT)})_async_torch_(\w+Tensor)")

library = mpi_ops.mpi_lib
given = []
"""Operation and shape of every device tensor that Horovod got, also of each tensor in a group."""
_under_way = {}


def carried(operation, own):
    """Return an operation for tensors on the device that calls Horovod's own one on the host."""

    def call(*arguments):
        place = OUTPUT[operation]
        tensors, outputs = arguments[0], arguments[place]
        sources, targets = _listed(tensors), _listed(outputs)
        if any(each.is_cpu for each in (*sources, *targets)):
            raise RuntimeError("tensors of one operation must be on the same device")
        given.extend((operation, each.shape) for each in sources)
        hosts = [each.cpu() for each in sources]
        is_in_place = targets[0] is sources[0]
        results = hosts if is_in_place else [torch.empty(t.shape, dtype=t.dtype) for t in targets]
        one = not isinstance(tensors, (list, tuple))
        changed = list(arguments)
        changed[0] = hosts[0] if one else hosts
        changed[place] = results[0] if one else results
        handle = own(*changed)
        _under_way[handle] = list(zip(targets, results))
        return handle

    return call


def _listed(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def _wait(own):
    def wait(handle):
        under_way = _under_way.pop(handle, [])
        own(handle)
        for target, result in under_way:
            if target.shape != result.shape:
                target.resize_(result.shape)
            if os.environ.get("HOROVOD_ENABLE_ASYNC_COMPLETION") == "1":
                _write_later(target, result)
            else:
                target.copy_(result)

    return wait


def _write_later(target, result):
    before = torch.accelerator.current_stream(target.device)
    default = torch.get_device_module(target.device).default_stream(target.device)
    torch.accelerator.set_stream(default)
    target.copy_(result.pin_memory(), non_blocking=True)
    torch.accelerator.set_stream(before)


@contextmanager
def carrying():
    before = {"horovod_torch_wait_and_clear": library.horovod_torch_wait_and_clear}
    nccl_built = hvd.nccl_built
    for name in dir(library):
        found = OWN.fullmatch(name)
        if found is not None:
            operation, kind = found.groups()
            ours = f"horovod_torch_{operation}_async_torch_{pretend.NAME}_{kind}"
            setattr(library, ours, carried(operation, getattr(library, name)))
            before[ours] = None
    library.horovod_torch_wait_and_clear = _wait(library.horovod_torch_wait_and_clear)
    hvd.nccl_built = lambda: True
    try:
        yield
    finally:
        hvd.nccl_built = nccl_built
        for name, own in before.items():
            if own is None:
                delattr(library, name)
            else:
                setattr(library, name, own)
