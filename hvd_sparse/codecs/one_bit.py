from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import (
    decode_bits,
    decode_presence,
    encode_bits,
    encode_presence,
    packed_bytes,
)
from hvd_sparse.codecs.contract import SignCodec, Signs
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need_size


@CODECS.register("one_bit")
@dataclass(frozen=True)
class OneBit(SignCodec):
    """Send the sign of every entry of the tensor, 1 bit each, and one magnitude.

        body: float32 or float64 magnitude; unless all entries are sent, a bitmap of the sent
              entries; for every sent entry a bit, 1 if negative

    Exact zeros are not sent, because they have no sign. If any entry is not sent, the bitmap adds a
    second bit per entry of the tensor. Cost of encoding and of decoding: one pass over an array
    with one byte per entry of the tensor, or two passes if there is a bitmap.

    Paper: karimireddy2019error.
    """

    number = 10
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        presence = [encode_presence(kept.indices, kept.numel)] if kept.count < kept.numel else []
        return [*presence, encode_bits(np.signbit(kept.values))]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        body, count, numel = frame.body, frame.count, frame.numel
        need_size(frame, int(self.signs_bytes(count, numel)))
        if count == numel:
            return np.arange(numel, dtype=np.uint32), decode_bits(body, count)
        offset = packed_bytes(numel, 1)
        indices = decode_presence(body[:offset], count, numel).astype(np.uint32)
        return indices, decode_bits(body[offset:], count)

    def signs_bytes(self, count: int, numel: int) -> float:
        return packed_bytes(count, 1) + (packed_bytes(numel, 1) if count < numel else 0)
