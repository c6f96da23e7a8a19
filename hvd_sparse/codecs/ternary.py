from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs.contract import MINUS, PLUS, SignCodec, Signs
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need, need_ascending


@CODECS.register("ternary")
@dataclass(frozen=True)
class Ternary(SignCodec):
    """Divide the tensor into bins. Send each bin's number of entries, and a word for each entry.

        body: float32 or float64 magnitude; uint8 or uint16 counts of the bins;
              uint8 or uint16 words [count]: 4 * (index within the bin) + s,
              where s is 1 for a positive and 2 for a negative entry

    With words of 8 bits a bin has 64 entries, and with words of 16 bits 16,384. The width that
    gives fewer bytes is used; it follows from count and numel, and is not sent. Cost of encoding
    and of decoding: about six array operations; encoding also counts the entries of every bin.

    Paper: chen2018adacomp, which defines the words (6 or 14 bits of index, 2 of sign), but not how
    a decoder finds the ends of bins; here every bin's number of entries is sent.  Departs: bins are
    as long as a word can address, instead of 50 or 500 entries, so that fewer counts are sent.
    """

    number = 9
    needs_host = "works only with selectors that read the vector as an array on the host"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        indices = kept.indices
        width, bits, bins = _layout(kept.count, kept.numel)
        counts = np.bincount(indices >> np.uint32(bits), minlength=bins)
        words = (indices & np.uint32((1 << bits) - 1)) << np.uint32(2)
        words += np.signbit(kept.values)  # MINUS is PLUS + 1
        words += np.uint32(PLUS)
        return [counts.astype(f"<u{width}"), words.astype(f"<u{width}")]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, (width, bits, bins) = frame.body, _layout(frame.count, frame.numel)
        need(
            body.size == width * (bins + frame.count),
            f"{frame.count} words and {bins} bins do not fill {body.size} bytes",
        )
        counts = body[: width * bins].view(f"<u{width}")
        words = body[width * bins :].view(f"<u{width}")
        need(
            int(counts.sum(dtype=np.int64)) == frame.count,
            f"the counts of the bins do not add up to {frame.count}",
        )
        signs = words & words.dtype.type(3)
        need(bool(np.all((signs == PLUS) | (signs == MINUS))), "a word has no valid sign")
        indices = np.repeat(np.arange(bins, dtype=np.uint32) << np.uint32(bits), counts)
        indices += words >> words.dtype.type(2)
        need_ascending(indices, frame.numel)
        return indices, signs == MINUS

    def signs_bytes(self, count: int, numel: int) -> float:
        width, _, bins = _layout(count, numel)
        return width * (bins + count)


def _layout(count: int, numel: int) -> tuple[int, int, int]:
    """Return three numbers: the bytes of a word, the bits of a word that hold an index within a
    bin, and the number of bins."""
    narrow, wide = -(-numel // 64), -(-numel // 16_384)
    return (1, 6, narrow) if count + narrow <= 2 * (count + wide) else (2, 14, wide)
