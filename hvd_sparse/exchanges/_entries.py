"""Arithmetic on selections, and frames (see ``wire.frame``) of only indices or only values."""

from __future__ import annotations

import numpy as np
from numpy.typing import DTypeLike

from hvd_sparse.errors import CorruptPayload
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import (
    AS_TYPE,
    Frame,
    need,
    need_ascending,
    need_size,
    read_frame,
    write_frame,
)

INDICES, VALUES = 240, 241
"""Numbers in the headers of frames with only indices, and of frames with only values, in place of a
codec's number."""


def merge(first: Selection, second: Selection) -> Selection:
    """Return the sum of two selections. It has every index that at least one of them has."""
    indices = np.union1d(first.indices, second.indices)
    values = np.zeros(indices.size, first.values.dtype)
    values[np.searchsorted(indices, first.indices)] = first.values
    with np.errstate(over="ignore"):  # the caller checks for Inf
        values[np.searchsorted(indices, second.indices)] += second.values
    return Selection(indices, values, first.numel)


def restrict(selection: Selection, indices: np.ndarray) -> Selection:
    kept = np.isin(selection.indices, indices, assume_unique=True)
    return Selection(selection.indices[kept], selection.values[kept], selection.numel)


def subtract(selection: Selection, other: Selection) -> Selection:
    """Return ``selection - other``. All indices of ``other`` must be in ``selection``."""
    values = selection.values.copy()
    values[np.searchsorted(selection.indices, other.indices)] -= other.values
    return Selection(selection.indices, values, selection.numel)


def region_of(selection: Selection, region: slice) -> Selection:
    """Return a selection's entries in ``region``, with indices relative to the region's start."""
    first, last = np.searchsorted(selection.indices, [region.start, region.stop])
    indices = selection.indices[first:last] - np.uint32(region.start)
    return Selection(indices, selection.values[first:last], region.stop - region.start)


def join(regions: list[tuple[slice, Selection]], numel: int, dtype: DTypeLike) -> Selection:
    """Return one selection of a tensor of ``numel`` entries from the selections of its regions,
    whose indices are relative to the regions' starts. The regions are given in ascending order."""
    if not regions:
        return Selection.empty(numel, dtype)
    indices = np.concatenate([part.indices + np.uint32(region.start) for region, part in regions])
    return Selection(indices, np.concatenate([part.values for _, part in regions]), numel)


def write_indices(selection: Selection) -> np.ndarray:
    indices, values = selection.indices.astype(np.uint32, copy=False), selection.values
    return write_frame(INDICES, values.dtype, selection.numel, selection.count, [indices])


def read_indices(buffer: np.ndarray, numel: int) -> np.ndarray:
    frame = _read(buffer, INDICES, numel)
    need_size(frame, 4 * frame.count)
    indices = frame.body.view("<u4").astype(np.uint32)
    need_ascending(indices, numel)
    return indices


def write_values(values: np.ndarray) -> np.ndarray:
    return write_frame(VALUES, values.dtype, values.size, values.size, [values])


def read_values(buffer: np.ndarray, numel: int, dtype: DTypeLike) -> np.ndarray:
    frame = _read(buffer, VALUES, numel)
    need(frame.count == numel, f"the payload has {frame.count} values for {numel} entries")
    need(
        frame.value_type == np.dtype(dtype),
        f"the payload has values of {frame.value_type} instead of {np.dtype(dtype)}",
    )
    need_size(frame, frame.count * frame.value_type.itemsize)
    return frame.body.view(frame.value_type).astype(dtype, copy=False)


def _read(buffer: np.ndarray, number: int, numel: int) -> Frame:
    frame = read_frame(buffer)
    is_whole = frame.total_bytes == buffer.size and frame.value_format == AS_TYPE
    if frame.codec != number or frame.numel != numel or not is_whole:
        raise CorruptPayload(
            f"a payload of kind {frame.codec} with {frame.count} of {frame.numel} entries does not "
            f"fit a tensor of {numel} entries, which expects kind {number}"
        )
    return frame
