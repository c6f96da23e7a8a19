"""Arithmetic of sparse vectors, and the frames that carry indices or values alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from hvd_sparse.core.wire.frame import Frame, read_frame, write_frame
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.types import Selection

INDICES, VALUES = 240, 241
"""Numbers of frames that no codec writes."""


def merge(first: Selection, second: Selection) -> Selection:
    """Their sum, in this order; its indices are those of both."""
    indices = np.union1d(first.indices, second.indices)
    values = np.zeros(indices.size, first.values.dtype)
    values[np.searchsorted(indices, first.indices)] = first.values
    values[np.searchsorted(indices, second.indices)] += second.values
    return Selection(indices, values, first.numel)


def restrict(selection: Selection, indices: np.ndarray, *, outside: bool = False) -> Selection:
    """Its entries at these indices, or at all others."""
    kept = np.isin(selection.indices, indices, assume_unique=True, invert=outside)
    return Selection(selection.indices[kept], selection.values[kept], selection.numel)


def subtract(selection: Selection, other: Selection) -> Selection:
    """What remains of a selection where another, of some of its indices, is taken from it."""
    values = selection.values.copy()
    values[np.searchsorted(selection.indices, other.indices)] -= other.values
    return Selection(selection.indices, values, selection.numel)


def region_of(selection: Selection, region: slice) -> Selection:
    """Its entries in a range, numbered from the range's beginning."""
    first, last = np.searchsorted(selection.indices, [region.start, region.stop])
    indices = selection.indices[first:last] - np.uint32(region.start)
    return Selection(indices, selection.values[first:last], region.stop - region.start)


def join(regions: list[tuple[slice, Selection]], numel: int, dtype: Any) -> Selection:
    """The reverse of ``region_of`` over ascending ranges."""
    if not regions:
        return Selection.empty(numel, dtype)
    indices = np.concatenate([part.indices + np.uint32(region.start) for region, part in regions])
    return Selection(indices, np.concatenate([part.values for _, part in regions]), numel)


def write_indices(selection: Selection) -> np.ndarray:
    """uint8: a frame of its indices, 4 bytes each."""
    dtype = selection.values.dtype.newbyteorder("<")
    return write_frame(
        INDICES,
        dtype,
        selection.numel,
        selection.count,
        [selection.indices.astype("<u4", copy=False)],
    )


def read_indices(buffer: np.ndarray, numel: int) -> np.ndarray:
    """uint32, ascending and unique; CorruptPayload where they are not."""
    frame = _read(buffer, INDICES, numel, 4)
    indices = frame.body.view("<u4").astype(np.uint32)
    if frame.count and (int(indices[-1]) >= numel or not np.all(indices[1:] > indices[:-1])):
        raise CorruptPayload(f"indices do not ascend, or leave a tensor of {numel} entries")
    return indices


def write_values(values: np.ndarray) -> np.ndarray:
    """uint8: a frame of a whole vector."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return write_frame(VALUES, little.dtype, values.size, values.size, [little])


def read_values(buffer: np.ndarray, numel: int, dtype: Any) -> np.ndarray:
    """The vector; CorruptPayload where it has another length or dtype."""
    frame = _read(buffer, VALUES, numel, np.dtype(dtype).itemsize)
    return frame.body.view(frame.value_type).astype(dtype, copy=False)


def _read(buffer: np.ndarray, number: int, numel: int, itemsize: int) -> Frame:
    frame = read_frame(buffer)
    if frame.codec != number or frame.numel != numel or frame.body.size != frame.count * itemsize:
        raise CorruptPayload(
            f"a payload of kind {frame.codec} with {frame.count} of {frame.numel} entries is not "
            "what a tensor of "
            f"{numel} entries waits for"
        )
    return frame
