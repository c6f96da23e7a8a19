"""The sum of the lists that arrived, compiled: zeros everywhere else.

Written once and read by nobody soon, it goes past the caches: they keep what the next tensors'
lists and their decoding need.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

from hvd_sparse.core.kernels.numba.signatures import signatures
from hvd_sparse.core.kernels.numba.vectors import VECTOR_BYTES, WORD, Vectors, counting

BLOCK = 4096
"""Entries that are added up in a buffer of their own, which the first cache holds."""

LARGE_BYTES = 1 << 18
"""Of a result that is written past the caches: an eighth of a second cache of 2 MiB, which many
tensors share."""


@intrinsic
def _copy_past_caches(typing, source, out, start, count):  # type: ignore[no-untyped-def]
    """out[start : start + count] = source[:count], whole vectors; ``out[start]`` begins at a
    multiple of 64 bytes."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        entries, to = (
            context.make_array(signature.args[i])(context, builder, arguments[i]).data
            for i in range(2)
        )
        vectors = Vectors(builder, context.get_data_type(signature.args[0].dtype))
        with counting(builder, ir.Constant(WORD, 0), arguments[3], vectors.lanes, []) as (
            index,
            _,
            _,
        ):
            vectors.store_past_caches(
                vectors.load(entries, index), to, builder.add(arguments[2], index)
            )
        return context.get_dummy_value()

    return types.void(source, out, types.intp, types.intp), codegen


@intrinsic
def _fence(typing):  # type: ignore[no-untyped-def]
    """What was written past the caches is seen by other threads before anything that follows."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@njit
def _entries_before_a_line(out):  # type: ignore[no-untyped-def]
    """How many entries of an array lie before its first multiple of 64 bytes."""
    return -out.ctypes.data % VECTOR_BYTES // out.itemsize


@njit(signatures("OjxII", types.void), nogil=True, cache=True)
def assemble(out, indices, values, starts, ends):  # type: ignore[no-untyped-def]
    """out = sum of lists, each ascending: list i lies in [starts[i], ends[i]); ``starts`` is moved
    along."""
    is_large = out.size * out.itemsize >= LARGE_BYTES
    lanes, lead = VECTOR_BYTES // out.itemsize, _entries_before_a_line(out) if is_large else 0
    block = np.zeros(BLOCK, out.dtype)
    first = 0
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
        for part in range(starts.size):
            i = starts[part]
            while i < ends[part] and indices[i] < last:
                block[indices[i] - first] = 0
                i += 1
            starts[part] = i
        first = last
    if is_large:
        _fence()
