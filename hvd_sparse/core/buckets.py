"""Which tensors travel in one message."""

from __future__ import annotations

from collections.abc import Sequence

from ..types import TensorSpec
from .configuration import Configuration
from .counts import count_from_density

BUCKET_BYTES = 64 * 1024
"""Expected payload at which a bucket is full: above it a collective's start-up cost no longer counts."""

UNKNOWN_DENSITY = 0.01
"""Guess for methods that are told no density, to size buckets by."""


def one_per_tensor(specs: Sequence[TensorSpec], configuration: Configuration) -> list[tuple[int, ...]]:
    """A bucket for every compressed tensor, by position."""
    return [(i,) for i, spec in enumerate(specs) if configuration.is_sparse(spec.shape, spec.numel)]


def merge_small(
    specs: Sequence[TensorSpec], configuration: Configuration, bucket_bytes: int = BUCKET_BYTES
) -> list[tuple[int, ...]]:
    """Neighbouring compressed tensors together, from the last registered to the first.

    Backward passes make gradients in about that order, so a bucket is complete early.
    """
    plan: list[tuple[int, ...]] = []
    members: list[int] = []
    filled = 0.0
    density = configuration.density(0) or UNKNOWN_DENSITY
    for (position,) in reversed(one_per_tensor(specs, configuration)):
        members.append(position)
        numel = specs[position].numel
        filled += count_from_density(numel, density) * configuration.codec.entry_bytes(numel, density)
        if filled >= bucket_bytes:
            plan.append(tuple(sorted(members)))
            members, filled = [], 0.0
    if members:
        plan.append(tuple(sorted(members)))
    return plan
