from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import decode_bits, decode_gaps, encode_bits, encode_gaps, gaps_bytes
from hvd_sparse.codecs.contract import SignCodec, Signs
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.kernels.rows import SIGNS
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need


@CODECS.register("sign_mean")
@dataclass(frozen=True)
class SignMean(SignCodec):
    """Send the Golomb-coded gaps between indices, a sign bit per entry, and the mean magnitude.

        body: float32 or float64 magnitude; the gaps (as in ``golomb``); a bit for every entry, 1 if
              negative

    An entry costs 12.4 bits at density 0.001. Cost: that of ``golomb``, and one pass over the
    values to compute their mean.

    Paper: sattler2019stc.
    """

    number = 8
    row_body = SIGNS
    has_fixed_size = False
    needs_host = ""

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        gaps = encode_gaps(kept.indices, kept.numel, kernels)
        return [gaps, encode_bits(np.signbit(kept.values))]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, count = frame.body, frame.count
        offset = body.size - -(-count // 8)
        need(offset >= 0, f"a body of {body.size} bytes cannot hold {count} signs")
        is_negative = decode_bits(body[offset:], count)
        return decode_gaps(body[:offset], count, frame.numel, kernels), is_negative

    def signs_bytes(self, count: int, numel: int) -> float:
        return gaps_bytes(count, numel) + -(-count // 8)
