"""Footprint: the bytes of a compressor, from shapes alone, before anything is allocated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hvd_sparse.checks import count_from_density
from hvd_sparse.configuration import Configuration
from hvd_sparse.kernels import reference
from hvd_sparse.memories._directions import DirectionState
from hvd_sparse.memories.double_buffer import DoubleBuffer
from hvd_sparse.types import TensorSpec
from hvd_sparse.untyped import Report
from hvd_sparse.wire.message import overhead_bytes

SAMPLE = 64
"""Entries of the small state whose size tells that of a large one."""


def footprint(configuration: Configuration, specs: Sequence[TensorSpec], world_size: int) -> Report:
    """Return bytes of state and messages, JSON-able.

    state_bytes : residuals, velocities and their second buffers, on every rank, after every tensor
    had a step gathered_bytes : bytes that every rank receives in a step at the density asked for,
    all ranks' messages for all tensors; None if the method chooses its own density
    """
    kept = [
        s
        for s in specs
        if configuration.is_sparse(s.shape, s.numel) or configuration.memory.finishes
    ]
    sent = [s for s in specs if configuration.is_sparse(s.shape, s.numel)]
    gathered = None
    if configuration.schedule is not None:
        told = sum(_message_bytes(configuration, spec) for spec in sent)
        gathered = world_size * int(told)
    return {
        "state_bytes": sum(_state_bytes(configuration, spec) for spec in kept),
        "gathered_bytes": gathered,
    }


def _message_bytes(configuration: Configuration, spec: TensorSpec) -> float:
    """Return the bytes of a message about one tensor, at the density asked for."""
    density = configuration.density(0, spec)
    assert density is not None
    entry_bytes: float = configuration.codec.entry_bytes(spec.numel, density)
    return count_from_density(spec.numel, density) * entry_bytes + overhead_bytes(1)


def _state_bytes(configuration: Configuration, spec: TensorSpec) -> int:
    small = configuration.memory.create(
        TensorSpec(spec.key, (1,) * (len(spec.shape) - 1) + (SAMPLE,), spec.dtype),
        rollback=configuration.rollback,
    )
    if isinstance(small, DirectionState):  # whose velocity is made where it is needed
        is_sparse = configuration.is_sparse(spec.shape, spec.numel)
        small.density = configuration.density(0, spec) if is_sparse else 1.0
        small.compensate(np.zeros(SAMPLE, spec.accumulator), reference)
    held = sum(
        thing.nbytes
        for thing in vars(small).values()
        if isinstance(thing, (DoubleBuffer, np.ndarray))
    )
    return int(held) * spec.numel // SAMPLE
