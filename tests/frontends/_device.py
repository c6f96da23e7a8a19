"""Starts Horovod, and finds the device of the workers with gradients on a device.

``HVD_SPARSE_TEST_DEVICE=cuda`` selects a GPU (one for each rank, if there are several), for
``scripts/gpu-check``; otherwise it is the pretend device.
"""

import os
from contextlib import nullcontext

import horovod.torch as hvd
import torch
from devices import carried, pretend

NAME = os.environ.get("HVD_SPARSE_TEST_DEVICE", pretend.NAME)
is_pretend = NAME == pretend.NAME
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


def can_carry():
    """Return whether Horovod can reduce tensors of the device, by NCCL or on the pretend device."""
    return is_pretend or bool(hvd.nccl_built())


def device_wire():
    """While the block runs, Horovod reduces tensors of the device, as it does with NCCL."""
    return carried.carrying() if is_pretend else nullcontext()
