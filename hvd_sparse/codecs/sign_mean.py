"""STC's codec: Golomb-coded positions, signs, and one mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import (
    decode_bits,
    decode_gaps,
    encode_bits,
    encode_gaps,
    gaps_bytes,
)
from hvd_sparse.codecs._signs import SignCodec
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.kernels.rows import SIGNS
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.frame import Frame, need


@CODECS.register("sign_mean")
@dataclass(frozen=True)
class SignMean(SignCodec):
    """Send the Golomb-coded gaps between indices, a sign bit per entry, and the mean magnitude.

        body: float32 or float64 magnitude; the gaps (as in ``golomb``); a bit for every entry, 1 if
              negative

    An entry costs 12.4 bits at density 0.001. Cost: that of ``golomb``, and one pass over the
    values for their mean.

    Paper: sattler2019stc.
    """

    paper = "sattler2019stc"
    number = 8
    row_body = SIGNS
    has_fixed_size = False
    needs_host = ""

    def encode_signs(
        self, indices: np.ndarray, is_negative: np.ndarray, numel: int, kernels: Packers
    ) -> list[np.ndarray]:
        return [encode_gaps(indices, numel, kernels), encode_bits(is_negative)]

    def decode_signs(
        self, body: np.ndarray, frame: Frame, kernels: Packers
    ) -> tuple[np.ndarray, np.ndarray]:
        offset = body.size - -(-frame.count // 8)
        need(offset >= 0, f"a body of {body.size} bytes cannot hold {frame.count} signs")
        is_negative = decode_bits(body[offset:], frame.count)
        return decode_gaps(body[:offset], frame.count, frame.numel, kernels), is_negative

    def signs_bytes(self, count: int, numel: int) -> float:
        return gaps_bytes(count, numel) + -(-count // 8)
