"""Broken engines, which tests on the pretend device must detect."""

import ctypes
from contextlib import contextmanager

import numpy as np
import torch

from hvd_sparse.kernels import torch as engine
from hvd_sparse.kernels.torch import passes, vector


def leave_out_the_wait():
    vector.wait_until = lambda done: None


def use_a_pinned_buffer_too_early():
    """Use one buffer for all uploads, as if the device had read it when the call returns."""
    buffer = torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)

    def upload(array, device):
        dtype = torch.from_numpy(array[:0].copy()).dtype
        host = buffer[: array.nbytes].view(dtype)
        host.numpy()[...] = array
        return host.to(device, non_blocking=True)

    vector.upload = engine.upload = upload


def read_a_result_on_the_host():
    """Read a result by its address, as if a tensor of the device were one of the CPU."""

    def fetch(tensor):
        size = tensor.numel() * tensor.element_size()
        there = (ctypes.c_char * size).from_address(tensor.data_ptr())
        return np.frombuffer(bytes(there), np.int32)

    passes.fetch = fetch


MUTANTS = {
    "a wait left out": leave_out_the_wait,
    "a pinned buffer used too early": use_a_pinned_buffer_too_early,
}
"""Mutants that give wrong results."""
FATAL = {"a result read on the host": read_a_result_on_the_host}
"""Mutants that crash the process."""


@contextmanager
def undone():
    """After the block, undo all changes that mutants have made."""
    names = [(vector, "wait_until"), (vector, "upload"), (engine, "upload")]
    kept = [(module, name, getattr(module, name)) for module, name in names]
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
