from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._values import decode_values, encode_values, missing_code
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import need, open_frame, write_frame

LONGEST = 65_535


@CODECS.register("run16")
@dataclass(frozen=True)
class Run16(Codec):
    """Send every selected entry's value, and the number of unsent entries before it (a run).

        body: uint16 runs [words], float32 or float64 values [words]

    A run has 16 bits, so an entry costs 6 bytes, or 10 bytes for float64 gradients.

    Notes
    -----
    The paper does not define runs of 65,536 entries and more. Here the run 65535 with the value
    +0.0 is a filler, which skips 65,536 entries. A selected +0.0 after a run of 65,535 would look
    like a filler, so its value is sent with all bits set, a NaN that no other entry has. There is
    one word, a run and a value, for every entry and every filler. Cost of encoding and of decoding:
    one cumulative sum and about six array operations.

    Paper: lin2018dgc.
    """

    number = 4
    has_fixed_size = False
    needs_host = ""

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        gaps = np.diff(selection.indices.astype(np.int64), prepend=-1) - 1
        runs, fillers = (gaps & LONGEST).astype("<u2"), gaps >> 16
        codes = encode_values(selection.values, "float32", kernels)[1]
        looks_filled = (runs == LONGEST) & (codes == 0)
        if looks_filled.any():
            codes = np.where(looks_filled, codes.dtype.type(missing_code(codes.itemsize)), codes)
        if fillers.any():  # an entry's fillers precede its own word
            places = np.cumsum(fillers + 1) - 1
            words = int(places[-1]) + 1
            all_runs, all_codes = np.full(words, LONGEST, "<u2"), np.zeros(words, codes.dtype)
            all_runs[places], all_codes[places] = runs, codes
            runs, codes = all_runs, all_codes
        return write_frame(
            4, selection.values.dtype, selection.numel, selection.count, [runs, codes]
        )

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        frame = open_frame(buffer, self)
        width = frame.value_type.itemsize
        words = frame.body.size // (2 + width)
        need(
            words * (2 + width) == frame.body.size,
            f"a body of {frame.body.size} bytes cannot be divided into words of {2 + width} bytes",
        )
        runs = frame.body[: 2 * words].view("<u2")
        codes = frame.body[2 * words :].view(f"<u{width}")
        is_entry = (runs != LONGEST) | (codes != 0)
        need(
            np.count_nonzero(is_entry) == frame.count,
            f"the payload does not have the {frame.count} entries of its header",
        )
        need(words == 0 or is_entry[-1], "the last run of zeros is not followed by an entry")
        ends = np.cumsum(runs, dtype=np.int64)
        ends += np.arange(words)
        if words != frame.count:  # drop the fillers; their runs are already in the sums
            ends, runs, codes = ends[is_entry], runs[is_entry], codes[is_entry]
        need(
            frame.count == 0 or int(ends[-1]) < frame.numel,
            f"an index exceeds the {frame.numel} entries of the tensor",
        )
        is_zero = (codes == missing_code(width)) & (runs == LONGEST)
        if is_zero.any():
            codes = np.where(is_zero, codes.dtype.type(0), codes)
        values = decode_values(frame.body[:0], codes, "float32", frame, kernels)
        return Selection(ends.astype(np.uint32), values, frame.numel)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        fillers = count * expected_fillers(count, numel)
        return (count + fillers) * (2 + value_bytes)


def expected_fillers(count: int, numel: int) -> float:
    """Return the expected number of fillers (see ``Run16``) per sent entry, for random indices: q +
    q^2 + ..., where q is the probability that 65,536 or more unsent entries precede a sent one."""
    if count == 0 or numel <= LONGEST:
        return 0.0
    chance = (1 - count / numel) ** (LONGEST + 1)
    return min(chance / (1 - chance), numel / (LONGEST + 1) / count) if chance < 1 else 0.0
