"""Broken engines, which tests on the pretend device must detect."""

import ctypes
import functools

import numpy as np
import torch

from hvd_sparse.kernels import torch as engine
from hvd_sparse.kernels.torch import passes, vector


@functools.cache
def pinned():
    return torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)


def upload_by_one_buffer(array, device):
    """Use one buffer for all uploads, as if the device had read it when the call returns."""
    dtype = torch.from_numpy(array[:0].copy()).dtype
    host = pinned()[: array.nbytes].view(dtype)
    host.numpy()[...] = array
    return host.to(device, non_blocking=True)


def read_on_the_host(tensor):
    """Read a result by its address, as if a tensor of the device were one of the CPU."""
    size = tensor.numel() * tensor.element_size()
    there = (ctypes.c_char * size).from_address(tensor.data_ptr())
    return np.frombuffer(bytes(there), np.int32)


MUTANTS = {
    "a wait left out": {(vector, "wait_until"): lambda done: None},
    "a pinned buffer used too early": dict.fromkeys(
        [(vector, "upload"), (engine, "upload")], upload_by_one_buffer
    ),
    "a result read on the host": {(passes, "fetch"): read_on_the_host},  # which crashes
}


def break_engine(mutant):
    for (owner, name), other in MUTANTS[mutant].items():
        setattr(owner, name, other)
