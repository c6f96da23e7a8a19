"""Arithmetic of sparse vectors, and the frames that carry indices or values alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import AS_TYPE, Frame, need, need_size, read_frame, write_frame

INDICES, VALUES = 240, 241
"""Numbers of frames that no codec writes."""


def merge(first: Selection, second: Selection) -> Selection:
    """Return the sum of two selections, at the indices of both.

    The values are added in this order.
    """
    indices = np.union1d(first.indices, second.indices)
    values = np.zeros(indices.size, first.values.dtype)
    values[np.searchsorted(indices, first.indices)] = first.values
    with np.errstate(over="ignore"):  # the caller looks for Inf before passing it on
        values[np.searchsorted(indices, second.indices)] += second.values
    return Selection(indices, values, first.numel)


def restrict(selection: Selection, indices: np.ndarray, *, outside: bool = False) -> Selection:
    """Return the entries of a selection at these indices, or, with ``outside``, at all others."""
    kept = np.isin(selection.indices, indices, assume_unique=True, invert=outside)
    return Selection(selection.indices[kept], selection.values[kept], selection.numel)


def subtract(selection: Selection, other: Selection) -> Selection:
    """Return a selection without the values of another, which has some of its indices."""
    values = selection.values.copy()
    values[np.searchsorted(selection.indices, other.indices)] -= other.values
    return Selection(selection.indices, values, selection.numel)


def region_of(selection: Selection, region: slice) -> Selection:
    """Return the entries of a selection in a range, numbered from the range's beginning."""
    first, last = np.searchsorted(selection.indices, [region.start, region.stop])
    indices = selection.indices[first:last] - np.uint32(region.start)
    return Selection(indices, selection.values[first:last], region.stop - region.start)


def join(regions: list[tuple[slice, Selection]], numel: int, dtype: DTypeLike) -> Selection:
    """Join the selections of ascending ranges: undo ``region_of``."""
    if not regions:
        return Selection.empty(numel, dtype)
    indices = np.concatenate([part.indices + np.uint32(region.start) for region, part in regions])
    return Selection(indices, np.concatenate([part.values for _, part in regions]), numel)


def write_indices(selection: Selection) -> np.ndarray:
    """Return uint8: a frame of a selection's indices, 4 bytes each."""
    dtype = selection.values.dtype.newbyteorder("<")
    return write_frame(
        INDICES,
        dtype,
        selection.numel,
        selection.count,
        [selection.indices.astype("<u4", copy=False)],
    )


def read_indices(buffer: np.ndarray, numel: int) -> np.ndarray:
    """Return the indices of a frame, uint32, ascending and unique.

    Raises
    ------
    CorruptPayload : the frame is of another kind or tensor, or the indices do not ascend
    """
    frame = _read(buffer, INDICES, numel)
    need_size(frame, 4 * frame.count)
    indices = frame.body.view("<u4").astype(np.uint32)
    if frame.count and (int(indices[-1]) >= numel or not np.all(indices[1:] > indices[:-1])):
        raise CorruptPayload(f"indices do not ascend, or leave a tensor of {numel} entries")
    return indices


def write_values(values: np.ndarray) -> np.ndarray:
    """Return uint8: a frame of a whole vector."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return write_frame(VALUES, little.dtype, values.size, values.size, [little])


def read_values(buffer: np.ndarray, numel: int, dtype: DTypeLike) -> np.ndarray:
    """Return the vector of a frame.

    Raises
    ------
    CorruptPayload : the frame is of another kind, length or dtype
    """
    frame = _read(buffer, VALUES, numel)
    need(frame.count == numel, f"{frame.count} values are not the whole of {numel} entries")
    need(
        frame.value_type == np.dtype(dtype),
        f"a payload has values of {frame.value_type}, not of {np.dtype(dtype)}",
    )
    need_size(frame, frame.count * frame.value_type.itemsize)
    return frame.body.view(frame.value_type).astype(dtype, copy=False)


def _read(buffer: np.ndarray, number: int, numel: int) -> Frame:
    """Return the one frame that fills a buffer; raise CorruptPayload if it is of another kind or
    tensor."""
    frame = read_frame(buffer)
    is_whole = frame.total_bytes == buffer.size and frame.value_format == AS_TYPE
    if frame.codec != number or frame.numel != numel or not is_whole:
        raise CorruptPayload(
            f"a payload of kind {frame.codec} with {frame.count} of {frame.numel} entries is not "
            f"what a tensor of {numel} entries waits for"
        )
    return frame
