"""Sum of the selections that arrived, compiled: zeros everywhere else.

The sum is written once and read by nobody soon, so it goes past the caches: they keep what the next
tensors' lists and their decoding need.
"""

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.intrinsics import Call, instructions
from hvd_sparse.kernels.numba.signatures import signatures
from hvd_sparse.kernels.numba.vectors import VECTOR_BYTES, WORD, counting

BLOCK = 4096
"""Entries of the buffer that sums are added up in, which the first cache holds."""

LARGE_BYTES = 1 << 18
"""Bytes of a result that is written past the caches.

They are an eighth of a second-level cache of 2 MiB, which many tensors share."""


def _emit_copy(call: Call) -> None:
    source, to = call.pointers(0, 1)
    builder, vectors, (start, count) = call.builder, call.vectors, call.arguments[2:4]
    with counting(builder, ir.Constant(WORD, 0), count, vectors.lanes, []) as (index, _, _):
        vectors.store_past_caches(vectors.load(source, index), to, builder.add(start, index))


@intrinsic
def _copy_past_caches(typing, source, out, start, count):  # type: ignore[no-untyped-def]
    """Copy source[:count] to out[start : start + count] without reading the lines of ``out``.

    The count is one of whole vectors, and ``out[start]`` begins at a multiple of 64 bytes.
    """
    return types.void(source, out, types.intp, types.intp), instructions(_emit_copy)


def _emit_fence(call: Call) -> None:
    call.builder.fence("seq_cst")


@intrinsic
def _fence(typing):  # type: ignore[no-untyped-def]
    """Let other threads see the writes past the caches before anything that follows."""
    return types.void(), instructions(_emit_fence)


@njit
def _entries_before_a_line(out):  # type: ignore[no-untyped-def]
    """Return the entries of an array before its first multiple of 64 bytes."""
    return -out.ctypes.data % VECTOR_BYTES // out.itemsize


@njit
def _assemble_blocks(out, indices, values, ends):  # type: ignore[no-untyped-def]
    """Do as ``assemble`` for a long result, a block after the other."""
    starts = np.zeros_like(ends)
    starts[1:] = ends[:-1]
    is_large = out.size * out.itemsize >= LARGE_BYTES
    # Stores past the caches must begin at whole lines: what lies before the first one goes the
    # usual way.
    lanes, lead = VECTOR_BYTES // out.itemsize, _entries_before_a_line(out) if is_large else 0
    # Added up here first: several ranks' entries meet in the first cache, and out is written once.
    block = np.zeros(BLOCK, out.dtype)
    first = 0
    # Up to the first whole line of a large result a short block is added up, then full ones.
    while first < out.size:
        last = min(first + BLOCK if first >= lead else lead, out.size)
        for part in range(starts.size):
            i = starts[part]
            while i < ends[part] and indices[i] < last:
                block[indices[i] - first] += values[i]
                i += 1
        whole = (last - first) // lanes * lanes if is_large and first >= lead else 0
        if whole:
            _copy_past_caches(block, out, first, whole)
        for i in range(whole, last - first):
            out[first + i] = block[i]
        # Clearing these entries alone is less work than the block: selections are sparse.
        for part in range(starts.size):
            i = starts[part]
            while i < ends[part] and indices[i] < last:
                block[indices[i] - first] = 0
                i += 1
            starts[part] = i
        first = last
    if is_large:
        _fence()


@njit(signatures("OjOIf", types.void), nogil=True, cache=True)
def assemble(out, indices, values, ends, factor):  # type: ignore[no-untyped-def]
    """Write out = the sum of ascending lists, one behind the other: ``ends`` of them.

    values : multiplied by the factor, each rounded, before anything is added
    """
    multiple = out.dtype.type(factor)
    for i in range(values.size):
        values[i] *= multiple
    if out.size > BLOCK:
        _assemble_blocks(out, indices, values, ends)
        return
    out[:] = 0  # as short as the buffer, which would only be copied
    for i in range(indices.size):
        out[indices[i]] += values[i]
