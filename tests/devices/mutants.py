"""Broken engines, which the pretend device must show."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import torch

from hvd_sparse.kernels import torch as engine
from hvd_sparse.kernels.torch import passes, vector


def leave_out_the_wait() -> None:
    vector.wait_until = lambda done: None


def use_a_pinned_buffer_too_early() -> None:
    """One buffer for every upload, as if the device had read it when the call returns."""
    buffer = torch.empty(1 << 16, dtype=torch.uint8, pin_memory=True)

    def upload(array: np.ndarray, device: torch.device) -> torch.Tensor:
        dtype = torch.from_numpy(array[:0].copy()).dtype
        host = buffer[: array.nbytes].view(dtype)
        host.numpy()[...] = array
        return host.to(device, non_blocking=True)

    vector.upload = engine.upload = upload


def read_a_result_on_the_host() -> None:
    """By its address, as whoever takes a tensor of a device for one of the CPU."""

    def fetch(tensor: torch.Tensor) -> np.ndarray:
        size = tensor.numel() * tensor.element_size()
        there = (ctypes.c_char * size).from_address(tensor.data_ptr())
        return np.frombuffer(bytes(there), np.int32)

    passes.fetch = fetch


MUTANTS: dict[str, Callable[[], None]] = {
    "a wait left out": leave_out_the_wait,
    "a pinned buffer used too early": use_a_pinned_buffer_too_early,
}
"""Those that give wrong results."""
FATAL: dict[str, Callable[[], None]] = {"a result read on the host": read_a_result_on_the_host}
"""Those that end the process."""


@contextmanager
def undone() -> Iterator[None]:
    """Take back behind the block whatever mutants change."""
    names = [(vector, "wait_until"), (vector, "upload"), (engine, "upload")]
    kept = [(module, name, getattr(module, name)) for module, name in names]
    try:
        yield
    finally:
        for module, name, value in kept:
            setattr(module, name, value)
