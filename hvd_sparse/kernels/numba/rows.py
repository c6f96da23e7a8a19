"""Compiled ``kernels.rows``: each function processes a whole bucket. ``send_rows`` encodes
gradients, and ``sum_rows`` adds up received frames."""

from __future__ import annotations

import math

import numpy as np
from numba import carray, from_dtype, njit, types
from numba.core import cgutils

from hvd_sparse.kernels.numba.bits import pack_few, pack_gaps, unpack_gaps
from hvd_sparse.kernels.numba.fused import add_and_take
from hvd_sparse.kernels.numba.lists import assemble, trim
from hvd_sparse.kernels.numba.vectors import SPARE, bits_of, compiled, emitted
from hvd_sparse.kernels.rows import ADAM, ARRIVED, DECAY, FRAME, MOMENTUM, SENT, SIGNS, steered

HEADER_WORDS, HEADER_BYTES = 8, 32
CHECKED_WORDS = 6
"""Number of the header's 32-bit words that the checksum covers. The checksum follows them."""


def _crc_tables() -> np.ndarray:
    """Return CRC-32 tables, uint32 [8, 256]. Entry [i, b] is what a byte b contributes to the CRC
    if i more bytes follow it."""
    tables = np.zeros((8, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        odd = tables[0] & 1
        tables[0] = (tables[0] >> 1) ^ odd * np.uint32(0xEDB88320)
    for row in range(1, 8):
        tables[row] = (tables[row - 1] >> 8) ^ tables[0][tables[row - 1] & 255]
    return tables


TABLES = _crc_tables()


_pointer = emitted(
    lambda call: call.builder.inttoptr(*call.arguments, cgutils.voidptr_t), types.voidptr
)


@njit
def _crc32(words, start, stop, crc, tables):  # type: ignore[no-untyped-def]
    """Extend a CRC-32 by words[start:stop], and return it. The caller starts with 0xFFFFFFFF as
    ``crc``, and inverts the bits of the last result."""
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
def _checksum(words, body_bytes, tables):  # type: ignore[no-untyped-def]
    stop = HEADER_WORDS + body_bytes // 4
    crc = _crc32(words, 0, CHECKED_WORDS, np.uint32(0xFFFFFFFF), tables)
    crc = _crc32(words, HEADER_WORDS, stop, crc, tables)
    for place in range(body_bytes % 4):
        byte = (crc ^ words[stop] >> (8 * place)) & 255
        crc = np.uint32(tables[0, byte] ^ np.uint32(crc >> np.uint32(8)))
    return crc ^ np.uint32(0xFFFFFFFF)


_steered = njit(steered)


def _signature(rows: str) -> list[tuple[list[types.Type], types.Type]]:
    table = {"s": SENT, "a": ARRIVED, "f": FRAME}
    kinds = [types.Array(from_dtype(table[letter]), 1, "C") for letter in rows]
    return [(kinds, scalar) for scalar in (types.float32, types.float64)]


_WORDS = types.Array(types.uint32, 1, "C")
_TABLES = types.Array(types.uint32, 2, "C", readonly=True)


@njit
def _vector(row, place, like):  # type: ignore[no-untyped-def]
    return carray(_pointer(row["vectors"][place]), row["numel"], like.dtype)


@njit
def _number(row, place, like):  # type: ignore[no-untyped-def]
    return like.dtype.type(row["numbers"][place])


@njit
def _mean_magnitude(values):  # type: ignore[no-untyped-def]
    """Return the mean magnitude of the values. It is clipped to the range of their magnitudes,
    because rounding may put it outside."""
    total, smallest, largest = 0.0, np.inf, 0.0
    for i in range(values.size):
        magnitude = np.float64(abs(values[i]))
        total += magnitude
        smallest, largest = min(smallest, magnitude), max(largest, magnitude)
    return values.dtype.type(min(max(total / values.size, smallest), largest))


@njit
def _write_signs(body, indices, values, numel):  # type: ignore[no-untyped-def]
    """Write the body of a frame of codec ``sign_mean``, for one or more values with the same
    magnitude. Return the body's number of bytes."""
    at, scale = values.itemsize, np.empty(1, values.dtype)
    scale[0] = abs(values[0])
    body[:at] = scale.view(np.uint8)
    at += pack_gaps(indices, numel, body[at:])
    is_negative = np.empty(values.size, np.uint8)
    for i in range(values.size):
        is_negative[i] = np.uint8(values[i] < 0)
    stop = at + ((values.size + 7) >> 3)
    pack_few(is_negative, 1, body[at:stop])
    return stop


@njit
def _read_signs(body, numel, indices, values):  # type: ignore[no-untyped-def]
    """Read a body that ``_write_signs`` wrote. Return whether the body has ``indices.size`` valid
    entries."""
    count = indices.size
    at, end = values.itemsize, body.size - ((count + 7) >> 3)
    if count == 0 or end <= at or count > 8 * (end - at):
        return False
    scale = body[:at].view(values.dtype)
    bits, _, infinity = bits_of(scale)
    if not 0 < bits[0] < infinity:  # also if the sign bit is set
        return False
    if count & 7 and body[-1] >> (count & 7):  # padding
        return False
    for i in range(count):
        values[i] = -scale[0] if (body[end + (i >> 3)] >> (i & 7)) & 1 else scale[0]
    return unpack_gaps(body[at:end], numel, indices)


@njit
def _pass_of(row, new, indices, values, nonfinite):  # type: ignore[no-untyped-def]
    gradient, old = _vector(row, 0, values), _vector(row, 1, values)
    rest = 0, row["numel"], row["aim"], indices, values, row["capacity"], nonfinite
    if row["move"] == DECAY:
        decay = _vector(row, 3, values), _number(row, 0, values)
        return add_and_take(gradient, old, new, decay, *rest)
    if row["move"] == MOMENTUM:
        momentum = (
            _vector(row, 3, values), _vector(row, 4, values),
            _number(row, 0, values), np.intp(row["numbers"][1]),
        )  # fmt: skip
        return add_and_take(gradient, old, new, momentum, *rest)
    if row["move"] == ADAM:
        adam = (
            _vector(row, 3, values), _vector(row, 4, values),
            _vector(row, 5, values), _vector(row, 6, values),
            _number(row, 0, values), _number(row, 1, values), _number(row, 2, values),
            _number(row, 3, values), _number(row, 4, values), _number(row, 5, values),
            _number(row, 6, values), _number(row, 7, values), _number(row, 8, values),
            _number(row, 9, values), np.intp(row["numbers"][10]),
        )  # fmt: skip
        return add_and_take(gradient, old, new, adam, *rest)
    return add_and_take(gradient, old, new, (), *rest)


@njit
def _release(row, chosen, entries):  # type: ignore[no-untyped-def]
    """Replace each selected entry by the part of it to send, as ``memories.contract.Release``
    defines. The part depends on how many steps ago the entry was last sent."""
    scalar = entries.dtype.type
    sent_in = carray(_pointer(row["sent_in"]), row["numel"], entries.dtype)
    shares = carray(_pointer(row["shares"]), row["ages"], np.float64)
    step, last = np.float64(row["step"]), np.float64(row["ages"] - 1)
    for i in range(entries.size):
        value = entries[i]
        age = min(max(step - np.float64(sent_in[chosen[i]]), 1.0), last)
        share = scalar(shares[np.intp(age)])
        if share >= 0.5:
            entries[i] = value * share
        else:
            entries[i] = value - value * (scalar(1) - share)


@njit
def _as_sent(row, body, new, chosen, entries):  # type: ignore[no-untyped-def]
    """Replace the selected entries by the values that are sent: a part of each entry, the mean
    magnitude with its sign, or both. Write the difference to the new residual, ``new``. If whole
    entries are sent, nothing changes."""
    if body != SIGNS and row["sent_in"] == 0:
        return
    for i in range(entries.size):
        new[chosen[i]] = entries[i]
    if row["sent_in"] != 0:
        _release(row, chosen, entries)
    if body == SIGNS:
        magnitude = _mean_magnitude(entries)
        for i in range(entries.size):
            entries[i] = -magnitude if entries[i] < 0 else magnitude
    for i in range(entries.size):
        new[chosen[i]] -= entries[i]


@compiled(
    [
        types.intp(*rows, types.intp, types.uint64, types.intp, _WORDS, _WORDS, _WORDS,
                   types.Array(scalar, 1, "C"), _WORDS, types.Array(scalar, 1, "C"), _TABLES)
        for rows, scalar in _signature("s")
    ]
)  # fmt: skip
def send_rows(  # type: ignore[no-untyped-def]
    rows, first, head, body, frames, lists, indices, values, kept_indices, kept_values, tables
):
    """Compute ``Kernels.send_rows``, and return the number of the first row that is left.

    ``frames`` and ``lists`` are arrays of 32-bit words. The other arrays are for the entries of one
    row: ``indices`` and ``values`` for the taken ones, with room for ``SPARE`` more than the
    largest capacity; ``kept_indices`` and ``kept_values`` for the largest of these, with room for
    one more than any row sends.
    """
    nonfinite = np.empty(1, np.intp)
    width = values.itemsize // 4
    for number in range(first, rows.size):
        row = rows[number]
        numel, least, most = row["numel"], row["least"], row["most"]
        new = _vector(row, 2, values)
        nonfinite[0] = 0
        taken = _pass_of(row, new, indices, values, nonfinite)
        row["taken"], row["nonfinite"] = taken, nonfinite[0]
        row["sent"] = -1
        if nonfinite[0] or taken < least:
            return number
        count, threshold = taken, row["aim"]
        if taken > most:
            count, threshold = trim(
                indices[:taken], values[:taken], row["wanted"], kept_indices, kept_values, new, True
            )
        row["margin"] = _steered(row["margin"], taken, least)
        row["sent"], row["threshold"] = count, threshold
        chosen = kept_indices[:count] if taken > most else indices[:count]
        entries = kept_values[:count] if taken > most else values[:count]
        _as_sent(row, body, new, chosen, entries)
        start = row["start"] // 4
        frame, nbytes = frames[start:], 4 * count * (1 + width)
        if body == SIGNS:
            nbytes = _write_signs(frame[HEADER_WORDS:].view(np.uint8), chosen, entries, numel)
        at = start + HEADER_WORDS
        lists[at : at + count] = chosen
        lists[at + count : at + count * (1 + width)] = entries.view(np.uint32)
        frame[0], frame[1] = head & 0xFFFFFFFF, head >> 32
        frame[2], frame[3], frame[4], frame[5], frame[7] = numel, count, nbytes, 0, 0
        frame[6] = _checksum(frame, nbytes, tables)
        row["nbytes"] = HEADER_BYTES + nbytes
    return rows.size


@njit
def _open(frame, nbytes, numel, head, words, tables):  # type: ignore[no-untyped-def]
    """Copy the frame at address ``frame`` to ``words``, and return its number of entries. Return -1
    if the frame is damaged or belongs to another tensor or codec."""
    if nbytes < HEADER_BYTES or nbytes > 4 * words.size:
        return -1
    words.view(np.uint8)[:nbytes] = carray(_pointer(frame), nbytes, np.uint8)
    count = np.intp(words[3])
    is_ours = (
        words[0] == head & 0xFFFFFFFF and words[1] == head >> 32 and words[2] == numel
        and words[5] == 0 and words[7] == 0 and words[4] == nbytes - HEADER_BYTES
        and count <= numel
    )  # fmt: skip
    if not is_ours or words[6] != _checksum(words, nbytes - HEADER_BYTES, tables):
        return -1
    return count


@njit
def _ascend(indices, numel):  # type: ignore[no-untyped-def]
    falls = 0
    for i in range(1, indices.size):
        falls += indices[i] <= indices[i - 1]
    return falls == 0 and (indices.size == 0 or indices[-1] < numel)


@njit
def _read(words, nbytes, body, numel, indices, values):  # type: ignore[no-untyped-def]
    """Decode the entries of a frame, which is in ``words``, into ``indices`` and ``values``. Return
    the sum of the values' squares, or NaN if the body is damaged."""
    count, squares = indices.size, 0.0
    if body == SIGNS:
        if not _read_signs(words.view(np.uint8)[HEADER_BYTES:nbytes], numel, indices, values):
            return np.nan
    else:
        width, at = values.itemsize // 4, HEADER_WORDS + count
        if nbytes != 4 * (at + count * width):
            return np.nan
        indices[:] = words[HEADER_WORDS:at]
        values.view(np.uint32)[:] = words[at : at + count * width]
    for i in range(count):
        squares += np.float64(values[i]) * np.float64(values[i])
    return squares if _ascend(indices, numel) else np.nan


@compiled(
    [
        types.void(*rows, types.uint64, types.intp, types.float64, _WORDS, _WORDS,
                   types.Array(scalar, 1, "C"), _TABLES)
        for rows, scalar in _signature("af")
    ]
)  # fmt: skip
def sum_rows(rows, frames, head, body, largest, words, indices, values, tables):  # type: ignore[no-untyped-def]
    """Compute ``Kernels.sum_rows``. If a frame's sum of squares is above ``largest``, the row's sum
    might overflow, so ``out`` is not written. ``words`` has room for the longest frame, ``indices``
    and ``values`` for all entries of any row."""
    for number in range(rows.size):
        row = rows[number]
        numel, parts, first = row["numel"], row["parts"], row["first"]
        ends, end, most = np.empty(parts, np.intp), 0, 0.0
        for part in range(parts):
            frame = frames[first + part]
            count = _open(frame["at"], frame["nbytes"], numel, head, words, tables)
            last = end + count
            if count < 0 or last > indices.size:
                most = np.nan
                break
            squares = _read(
                words, frame["nbytes"], body, numel, indices[end:last], values[end:last]
            )
            if not squares <= largest:
                most = np.nan
                break
            most += math.sqrt(squares)
            ends[part] = end = last
        row["most"] = most
        if most == most:
            out = carray(_pointer(row["out"]), numel, values.dtype)
            assemble(out, indices[:end], values[:end], ends, row["factor"])


class CompiledRows:
    def send_rows(
        self,
        rows: np.ndarray,
        first: int,
        head: int,
        frames: np.ndarray,
        lists: np.ndarray,
        body: int,
        dtype: np.dtype,
    ) -> tuple[int, np.ndarray, np.ndarray]:
        room, most = int(rows["capacity"].max()) + SPARE, int(rows["most"].max()) + 1
        indices, values = np.empty(room, np.uint32), np.empty(room, dtype)
        kept = np.empty(most, np.uint32), np.empty(most, dtype)
        words = frames.view(np.uint32), lists.view(np.uint32)
        left = send_rows(rows, first, head, body, *words, indices, values, *kept, TABLES)
        return left, indices, values

    def sum_rows(
        self, rows: np.ndarray, frames: np.ndarray, head: int, body: int, dtype: np.dtype
    ) -> None:
        longest = int(frames["nbytes"].max()) // 4 + 1
        # An entry needs a word of the frame for its index; in a body of signs, two bits or more.
        most = min(longest * (16 if body == SIGNS else 1), int(rows["numel"].max()))
        room = most * int(rows["parts"].max())
        words, indices = np.empty(longest, np.uint32), np.empty(room, np.uint32)
        largest = float(np.finfo(dtype).max)
        sum_rows(rows, frames, head, body, largest, words, indices, np.empty(room, dtype), TABLES)
