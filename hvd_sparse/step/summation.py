"""The sum of all ranks' selections, in rank order: the same bits on every rank."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NamedTuple

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.errors import CorruptPayload, NonFiniteGradient
from hvd_sparse.exchanges.members import Part
from hvd_sparse.kernels.arrays import aligned_empty, is_finite
from hvd_sparse.kernels.contract import Kernels, Surplus
from hvd_sparse.kernels.rows import ARRIVED, FRAME, address, rows_of
from hvd_sparse.types import Selection, TensorSpec
from hvd_sparse.wire.frame import decode_for, frame_head

Row = tuple[float, ...]

MOST_FACTOR = 1e6
"""Largest usual factor of a sum; Horovod's are at most 1 by default."""


def gather(
    spec: TensorSpec,
    parts: Iterable[Part],
    dtype: np.dtype,
    codec: Codec,
    kernels: Kernels | ModuleType,
) -> tuple[list[Selection], float]:
    """Decode the parts of a tensor; CorruptPayload if one is not for this tensor.

    Returns selections of the whole tensor, and an upper bound of the magnitudes of their sum, up to
    rounding; infinite or NaN if it may overflow.
    """
    arrived, most = [], 0.0
    for place, sent in parts:
        start, numel = place.start, place.stop - place.start
        if not isinstance(sent, Selection):
            sent = decode_for(spec.key, numel, dtype, codec, sent, kernels)
        elif sent.numel != numel or sent.values.dtype != dtype:
            raise CorruptPayload(
                f"tensor {spec.key!r} has {numel} entries of {dtype}; a payload for it is for "
                f"{sent.numel} of {sent.values.dtype}"
            )
        # If the sums of squares are in range, the sum is by far.
        most += math.sqrt(sent.values.dot(sent.values))
        if numel != spec.numel:
            sent = Selection(sent.indices + np.uint32(start), sent.values, spec.numel)
        arrived.append(sent)
    return arrived, most


class Sum(NamedTuple):
    """One tensor's sum: ``out``, flat, is to become factor * (sum of the parts)."""

    spec: TensorSpec
    codec: Codec
    parts: Sequence[Part]
    out: np.ndarray
    factor: float


def sum_together(
    sums: Sequence[Sum], surplus: Surplus, kernels: Kernels | ModuleType
) -> list[float | None]:
    """Write the sums of a bucket's tensors, and add surplus entries of device passes back.

    Returns an upper bound of each sum's magnitudes; None if nothing was written, because a payload
    is corrupt or the sum may overflow.
    """
    bounds, given = _sum_rows(sums, kernels), []
    for place, (spec, codec, parts, out, factor) in enumerate(sums):
        if bounds[place] is not None:
            continue
        try:
            arrived, most = gather(spec, parts, out.dtype, codec, kernels)
        except CorruptPayload:  # raised again for the tensor
            continue
        if abs(factor) <= MOST_FACTOR and most < math.inf:
            bounds[place] = most * abs(factor)
            given.append((out, arrived, factor))
    if given or surplus:
        kernels.assemble_together(given, surplus)
    return bounds


def _sum_rows(sums: Sequence[Sum], kernels: Kernels | ModuleType) -> list[float | None]:
    """Write the sums that one call of the engine can: of tensors on the host with plain frames."""
    bounds: list[float | None] = [None] * len(sums)
    engine = rows_of(kernels)
    if engine is None:
        return bounds
    # By dtype and codec: the places of the results, their rows, and the rows' frames.
    tables: dict[tuple[np.dtype, Codec], tuple[list[int], list[Row], list[tuple[int, int]]]] = {}
    for place, (_, codec, parts, out, factor) in enumerate(sums):
        if not (codec.row_body and isinstance(out, np.ndarray) and abs(factor) <= MOST_FACTOR):
            continue
        there = [(address(s), s.size) for _, s in parts if isinstance(s, np.ndarray)]
        if not there or len(there) < len(parts):
            continue
        places, rows, frames = tables.setdefault((out.dtype, codec), ([], [], []))
        places.append(place)
        rows.append((address(out), out.size, len(frames), len(parts), factor, 0.0))
        frames += there
    for (dtype, codec), (places, rows, frames) in tables.items():
        table, head = np.array(rows, ARRIVED), frame_head(codec, dtype)
        engine.sum_rows(table, np.array(frames, FRAME), head, codec.row_body, dtype)
        for place, most in zip(places, table["most"].tolist()):
            if most == most:
                bounds[place] = most * abs(sums[place].factor)
    return bounds


def check_range(
    spec: TensorSpec, parts: list[Selection], factor: float, kernels: Kernels | ModuleType
) -> None:
    """Raise NonFiniteGradient if the sum, or its product with the factor, is not finite."""
    out = aligned_empty(spec.numel, spec.accumulator)
    for each in (1.0, factor):
        with np.errstate(over="ignore", invalid="ignore"):
            kernels.assemble(out, parts, each)
        if not is_finite(out):
            raise NonFiniteGradient(
                f"tensor {spec.key!r}: the sum of the ranks' entries leaves the range of "
                f"{spec.accumulator}"
            )
