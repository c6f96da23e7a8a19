"""EF-sign's codec: one bit for every entry of the tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import (
    decode_bits,
    decode_presence,
    encode_bits,
    encode_presence,
    presence_bytes,
)
from hvd_sparse.codecs._signs import SignCodec
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.frame import Frame, need_size


@CODECS.register("one_bit")
@dataclass(frozen=True)
class OneBit(SignCodec):
    """Send the sign of every entry of the tensor, 1 bit each, and one magnitude.

        body: float32 or float64 magnitude; unless all entries are sent, a bitmap of the sent
              entries; for every sent entry a bit, 1 if negative

    Exact zeros have no sign and are not sent. If there are any, the bitmap adds a second bit per
    entry of the tensor. Cost: one pass over one byte per entry of the tensor, two if there is a
    bitmap, for encoding and for decoding.

    Paper: karimireddy2019error.
    """

    paper = "karimireddy2019error"
    number = 10
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"

    def encode_signs(
        self, indices: np.ndarray, is_negative: np.ndarray, numel: int, kernels: Packers
    ) -> list[np.ndarray]:
        presence = [encode_presence(indices, numel)] if indices.size < numel else []
        return [*presence, encode_bits(is_negative)]

    def decode_signs(
        self, body: np.ndarray, frame: Frame, kernels: Packers
    ) -> tuple[np.ndarray, np.ndarray]:
        need_size(
            frame, frame.value_type.itemsize + int(self.signs_bytes(frame.count, frame.numel))
        )
        if frame.count == frame.numel:
            return np.arange(frame.numel, dtype=np.uint32), decode_bits(body, frame.count)
        offset = presence_bytes(frame.numel)
        return decode_presence(body[:offset], frame.count, frame.numel), decode_bits(
            body[offset:], frame.count
        )

    def signs_bytes(self, count: int, numel: int) -> float:
        return presence_bytes(count) + (presence_bytes(numel) if count < numel else 0)
