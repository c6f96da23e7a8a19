"""A bucket's rows, compiled: from the gradients to whole frames, and from frames to the sums.
Contract: ``kernels.rows``."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, from_dtype, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from hvd_sparse.kernels.numba.fused import _take_added
from hvd_sparse.kernels.numba.lists import assemble, trim
from hvd_sparse.kernels.numba.vectors import SPARE, pattern_of
from hvd_sparse.kernels.rows import ARRIVED, FRAME, SENT, steered

HEADER_WORDS = 8
CHECKED_WORDS = 6
"""Of a frame's header, which its checksum covers; it stands behind them."""


def _crc_tables() -> np.ndarray:
    """Return uint32 [8, 256]: what a byte does to a CRC-32 that so many bytes follow."""
    tables = np.zeros((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        odd = tables[0] & 1
        tables[0] = (tables[0] >> 1) ^ odd * np.uint32(0xEDB88320)
    for row in range(1, 8):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0][tables[row - 1] & 255]
    return tables


TABLES = _crc_tables()


@intrinsic
def _pointer(typing: Any, address: Any) -> Any:
    """Return an address as a pointer."""

    def emit(context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> ir.Value:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), emit


@njit
def _crc32(words, start, stop, crc, tables):  # type: ignore[no-untyped-def]
    """Go on with a CRC-32 over whole words; begun with 0xFFFFFFFF, and inverted in the end."""
    i = start
    while i + 1 < stop:
        low, high = crc ^ words[i], words[i + 1]
        crc = (
            tables[7, low & 255] ^ tables[6, (low >> 8) & 255]
            ^ tables[5, (low >> 16) & 255] ^ tables[4, low >> 24]
            ^ tables[3, high & 255] ^ tables[2, (high >> 8) & 255]
            ^ tables[1, (high >> 16) & 255] ^ tables[0, high >> 24]
        )  # fmt: skip
        i += 2
    if i < stop:
        low = crc ^ words[i]
        crc = (
            tables[3, low & 255] ^ tables[2, (low >> 8) & 255]
            ^ tables[1, (low >> 16) & 255] ^ tables[0, low >> 24]
        )  # fmt: skip
    return crc


@njit
def _checksum(words, body_words, tables):  # type: ignore[no-untyped-def]
    """Return the checksum of a frame: of its header up to there, and of its body."""
    crc = _crc32(words, 0, CHECKED_WORDS, np.uint32(0xFFFFFFFF), tables)
    crc = _crc32(words, HEADER_WORDS, HEADER_WORDS + body_words, crc, tables)
    return crc ^ np.uint32(0xFFFFFFFF)


_steered = njit(steered)


def _signature(rows: str) -> list[Any]:
    """Return the signatures of a function over rows, for lists of float32 and float64."""
    table = {"s": SENT, "a": ARRIVED, "f": FRAME}
    kinds = [types.Array(from_dtype(table[letter]), 1, "C") for letter in rows]
    return [(kinds, scalar) for scalar in (types.float32, types.float64)]


_WORDS = types.Array(types.uint32, 1, "C")
_TABLES = types.Array(types.uint32, 2, "C", readonly=True)


@njit(
    [
        types.intp(*rows, types.intp, types.uint64, _WORDS, _WORDS, types.Array(scalar, 1, "C"),
                   _WORDS, types.Array(scalar, 1, "C"), _TABLES)
        for rows, scalar in _signature("s")
    ],
    nogil=True, cache=True,
)  # fmt: skip
def send_rows(  # type: ignore[no-untyped-def]
    rows, first, head, words, indices, values, kept_indices, kept_values, tables
):
    """Do as ``RowKernels.send_rows``, with the frames as words.

    Parameters
    ----------
    indices, values : room for what any pass takes
    kept_indices, kept_values : room for one more than any row sends
    """
    totals = np.empty(2)
    as_words, kept_as_words = values.view(np.uint32), kept_values.view(np.uint32)
    width = values.itemsize // 4
    for number in range(first, rows.size):
        row = rows[number]
        numel, least, most = row["numel"], row["least"], row["most"]
        gradient = carray(_pointer(row["gradient"]), numel, values.dtype)
        old = carray(_pointer(row["old"]), numel, values.dtype)
        new = carray(_pointer(row["new"]), numel, values.dtype)
        cut, _ = pattern_of(values.dtype.type(row["aim"]))
        totals[:] = 0
        taken = _take_added(
            gradient, old, new, numel, max(1, cut), indices, values, row["capacity"], totals
        )
        row["taken"], row["abs_sum"], row["nonfinite"] = taken, totals[0], np.intp(totals[1])
        row["sent"] = -1
        if totals[1] != 0 or taken < least:
            return number
        count, threshold = taken, row["aim"]
        if taken > most:
            count, threshold = trim(
                indices[:taken], values[:taken], row["wanted"], kept_indices, kept_values, new, True
            )
        row["margin"] = _steered(row["margin"], taken, least)
        row["sent"], row["threshold"] = count, threshold
        frame = words[row["start"] // 4 :]
        body = count * (1 + width)
        frame[0], frame[1] = head & 0xFFFFFFFF, head >> 32
        frame[2], frame[3], frame[4], frame[5], frame[7] = numel, count, 4 * body, 0, 0
        at = HEADER_WORDS + count
        if taken > most:
            frame[HEADER_WORDS:at] = kept_indices[:count]
            frame[at : at + count * width] = kept_as_words[: count * width]
        else:
            frame[HEADER_WORDS:at] = indices[:count]
            frame[at : at + count * width] = as_words[: count * width]
        frame[6] = _checksum(frame, body, tables)
    return rows.size


@njit
def _open(frame, nbytes, numel, head, words, width, tables):  # type: ignore[no-untyped-def]
    """Copy a frame to words, and return how many entries it has; -1 where it is not whole, or of
    another tensor or codec."""
    if nbytes < 4 * HEADER_WORDS or nbytes > 4 * words.size:
        return -1
    words.view(np.uint8)[:nbytes] = carray(_pointer(frame), nbytes, np.uint8)
    count = np.intp(words[3])
    body = count * (1 + width)
    is_ours = (
        words[0] == head & 0xFFFFFFFF and words[1] == head >> 32 and words[2] == numel
        and words[5] == 0 and words[7] == 0 and words[4] == 4 * body
        and nbytes == 4 * (HEADER_WORDS + body) and count <= numel
    )  # fmt: skip
    if not is_ours or words[6] != _checksum(words, body, tables):
        return -1
    return count


@njit
def _ascend(indices, numel):  # type: ignore[no-untyped-def]
    """Tell whether indices ascend strictly inside a tensor."""
    falls = 0
    for i in range(1, indices.size):
        falls += indices[i] <= indices[i - 1]
    return falls == 0 and (indices.size == 0 or indices[-1] < numel)


@njit(
    [
        types.void(*rows, types.uint64, types.float64, _WORDS, _WORDS,
                   types.Array(scalar, 1, "C"), _TABLES)
        for rows, scalar in _signature("af")
    ],
    nogil=True, cache=True,
)  # fmt: skip
def sum_rows(rows, frames, head, largest, words, indices, values, tables):  # type: ignore[no-untyped-def]
    """Do as ``RowKernels.sum_rows``.

    Parameters
    ----------
    largest : bound of the squares' sums: beyond it a sum might leave the dtype
    words, indices, values : room for any frame, and for all entries of any row
    """
    as_words, width = values.view(np.uint32), values.itemsize // 4
    for number in range(rows.size):
        row = rows[number]
        numel, parts, first = row["numel"], row["parts"], row["first"]
        ends, end, most = np.empty(parts, np.intp), 0, 0.0
        for part in range(parts):
            frame = frames[first + part]
            count = _open(frame["at"], frame["nbytes"], numel, head, words, width, tables)
            if count < 0 or end + count > indices.size:
                most = np.nan
                break
            at, last = HEADER_WORDS + count, end + count
            indices[end:last] = words[HEADER_WORDS:at]
            as_words[end * width : last * width] = words[at : at + count * width]
            squares = 0.0
            for i in range(end, last):
                squares += np.float64(values[i]) * np.float64(values[i])
            if not (squares <= largest and _ascend(indices[end:last], numel)):
                most = np.nan
                break
            most += math.sqrt(squares)
            ends[part] = end = last
        row["most"] = most
        if most == most:
            out = carray(_pointer(row["out"]), numel, values.dtype)
            assemble(out, indices[:end], values[:end], ends, row["factor"])


class CompiledRows:
    """The functions of ``RowKernels``."""

    def send_rows(
        self, rows: np.ndarray, first: int, head: int, frames: np.ndarray, dtype: np.dtype
    ) -> tuple[int, np.ndarray, np.ndarray]:
        room, most = int(rows["capacity"].max()) + SPARE, int(rows["most"].max()) + 1
        indices, values = np.empty(room, np.uint32), np.empty(room, dtype)
        kept_indices, kept_values = np.empty(most, np.uint32), np.empty(most, dtype)
        words = frames.view(np.uint32)
        left = send_rows(
            rows, first, head, words, indices, values, kept_indices, kept_values, TABLES
        )
        return left, indices, values

    def sum_rows(self, rows: np.ndarray, frames: np.ndarray, head: int, dtype: np.dtype) -> None:
        longest = int(frames["nbytes"].max()) // 4 + 1
        room = longest * int(rows["parts"].max())
        words, indices = np.empty(longest, np.uint32), np.empty(room, np.uint32)
        largest = float(np.finfo(dtype).max)
        sum_rows(rows, frames, head, largest, words, indices, np.empty(room, dtype), TABLES)
