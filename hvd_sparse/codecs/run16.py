"""DGC's codec: 16-bit runs of zeros, and the values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.codecs._values import decode_values, encode_values, missing_code
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.kernels import packing
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import need, open_frame, selection_from, write_frame

LONGEST = 65_535


@CODECS.register("run16")
@dataclass(frozen=True)
class Run16(Codec):
    """Send the run of zeros before every entry, in 16 bits, and its value: 6 bytes an entry.

        body: uint16 runs [words], float32 or float64 values [words]

    An entry of a float64 tensor costs 10 bytes.

    Notes
    -----
    The paper does not say what becomes of 65,536 zeros and more. Here a word (65535, +0.0) steps
    over 65,535 zeros and one more, and is no entry. An entry that would look the same, a +0.0 after
    65,535 zeros, has the value with all bits set instead, a NaN, which no other entry has. So
    selections come back bit for bit.

    Cost: one running sum and about six array operations, each way.

    Paper: lin2018dgc.
    """

    paper: ClassVar[str | None] = "lin2018dgc"
    number: ClassVar[int | None] = 4
    has_fixed_size: ClassVar[bool] = False
    needs_host: ClassVar[str] = ""

    def encode(self, selection: Selection, kernels: Packers = packing) -> np.ndarray:
        runs, fillers = _runs(selection.indices)
        codes = encode_values(selection.values, "float32", kernels)[1]
        looks_filled = (runs == LONGEST) & (codes == 0)
        if looks_filled.any():
            codes = np.where(looks_filled, codes.dtype.type(missing_code(codes.itemsize)), codes)
        if fillers.any():  # words that only step over zeros stand before their entry's own
            places = np.cumsum(fillers + 1) - 1
            words = int(places[-1]) + 1
            all_runs, all_codes = np.full(words, LONGEST, "<u2"), np.zeros(words, codes.dtype)
            all_runs[places], all_codes[places] = runs, codes
            runs, codes = all_runs, all_codes
        return write_frame(
            4, selection.values.dtype, selection.numel, selection.count, [runs, codes]
        )

    def decode(self, buffer: np.ndarray, kernels: Packers = packing) -> Selection:
        frame = open_frame(buffer, self)
        width = frame.value_type.itemsize
        words = frame.body.size // (2 + width)
        need(
            words * (2 + width) == frame.body.size,
            f"{frame.body.size} bytes are no whole number of words",
        )
        runs, codes = (
            frame.body[: 2 * words].view("<u2"),
            frame.body[2 * words :].view(f"<u{width}"),
        )
        is_entry = (runs != LONGEST) | (codes != 0)
        need(
            np.count_nonzero(is_entry) == frame.count,
            "there are fewer or more entries than announced",
        )
        need(words == 0 or is_entry[-1], "a run of zeros ends in no entry")
        ends = np.cumsum(runs, dtype=np.int64)
        ends += np.arange(words)
        if words != frame.count:  # fillers have moved what follows them on, and are done
            ends, runs, codes = ends[is_entry], runs[is_entry], codes[is_entry]
        need(
            frame.count == 0 or int(ends[-1]) < frame.numel,
            f"an index leaves a tensor of {frame.numel} entries",
        )
        is_zero = (codes == missing_code(width)) & (runs == LONGEST)
        if is_zero.any():
            codes = np.where(is_zero, codes.dtype.type(0), codes)
        values = decode_values(frame.body[:0], codes, "float32", frame, kernels)
        return selection_from(frame, ends.astype(np.uint32), values)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        fillers = count * expected_fillers(count, numel)
        return (count + fillers) * (2 + value_bytes)


def _runs(indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the runs, uint16 [count], and the words of 65,536 zeros that stand before each."""
    gaps = np.diff(indices.astype(np.int64), prepend=-1) - 1
    return (gaps & LONGEST).astype("<u2"), gaps >> 16


def expected_fillers(count: int, numel: int) -> float:
    """Return the expected words an entry, at a random place, that only step over zeros.

    They are q + q^2 + ... for q = P(gap >= 65,536).
    """
    if count == 0 or numel <= LONGEST:
        return 0.0
    chance = (1 - count / numel) ** (LONGEST + 1)
    return min(chance / (1 - chance), numel / (LONGEST + 1) / count) if chance < 1 else 0.0
