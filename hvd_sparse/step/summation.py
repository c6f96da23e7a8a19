"""Adding up what all ranks sent of a tensor, in rank order: the same bits on every rank."""

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
"""Horovod multiplies sums by 1 or less, unless it is told otherwise."""


class Gathered(NamedTuple):
    """Selections that arrived for a tensor, decoded.

    Attributes
    ----------
    parts : in the order given, each as one of the whole tensor
    most : a magnitude that no entry of their sum exceeds by more than rounding
    """

    parts: list[Selection]
    most: float

    def is_safe(self, factor: float) -> bool:
        """Return whether factor * sum stays in the range of floats."""
        # Where the sums of the squares stay in range, the sum of such lists does by far; NaN is
        # not less than anything.
        return abs(factor) <= MOST_FACTOR and self.most < math.inf


def gather(
    spec: TensorSpec,
    parts: Iterable[Part],
    dtype: np.dtype,
    codec: Codec,
    kernels: Kernels | ModuleType,
) -> Gathered:
    """Decode what arrived for a tensor.

    parts : the range of the tensor that each is of, and an encoded selection or one as it is

    Raises
    ------
    CorruptPayload : a payload is not for this tensor
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
        most += math.sqrt(sent.values.dot(sent.values))
        if numel != spec.numel:
            sent = Selection(sent.indices + np.uint32(start), sent.values, spec.numel)
        arrived.append(sent)
    return Gathered(arrived, most)


class Sum(NamedTuple):
    """One tensor's result that is added up.

    Attributes
    ----------
    spec, codec : of the tensor, and of its step
    parts : what arrived for it
    out : written, flat, of the accumulator's dtype
    factor : of the sum
    """

    spec: TensorSpec
    codec: Codec
    parts: Sequence[Part]
    out: np.ndarray
    factor: float


def sum_together(
    sums: Sequence[Sum], surplus: Surplus, kernels: Kernels | ModuleType
) -> list[float | None]:
    """Add up what arrived for a bucket's tensors, and put back what passes of devices took too
    much.

    Returns a bound of each sum's magnitudes; None where nothing was written, as a payload is
    corrupt or the sum might leave the range of floats.
    """
    bounds, given = _sum_rows(sums, kernels), []
    for place, (spec, codec, parts, out, factor) in enumerate(sums):
        if bounds[place] is not None:
            continue
        try:
            arrived = gather(spec, parts, out.dtype, codec, kernels)
        except CorruptPayload:  # raised again in the tensor's own turn
            continue
        if arrived.is_safe(factor):
            bounds[place] = arrived.most * abs(factor)
            given.append((out, arrived.parts, factor))
    if given or surplus:
        kernels.assemble_together(given, surplus)
    return bounds


def _sum_rows(sums: Sequence[Sum], kernels: Kernels | ModuleType) -> list[float | None]:
    """Do what the engine can in one call, for tensors of the host whose frames are plain."""
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
    """Raise NonFiniteGradient where the sum, as it is or times the factor, is not finite."""
    out = aligned_empty(spec.numel, spec.accumulator)
    for each in (1.0, factor):
        with np.errstate(over="ignore", invalid="ignore"):
            kernels.assemble(out, parts, each)
        if not is_finite(out):
            raise NonFiniteGradient(
                f"tensor {spec.key!r}: the sum of the ranks' entries leaves the range of "
                f"{spec.accumulator}"
            )
