"""EF-sign's codec: one bit an entry of the tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.codecs._signs import SignCodec, decode_bits, encode_bits
from hvd_sparse.codecs.bitmap import decode_presence, encode_presence, presence_bytes
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.wire.frame import Frame, need_size


@CODECS.register("one_bit")
@dataclass(frozen=True)
class OneBit(SignCodec):
    """Send the sign of every entry of the tensor, and one magnitude: 1 bit an entry.

        body: float32 or float64 magnitude; unless all entries are sent, a bit an entry of the
              tensor, 1 if it is; a bit an entry that is sent, 1 if negative

    Notes
    -----
    An entry that is exactly zero has no sign. Where there are such entries, a second bit tells
    which, so that they stay zero.

    Cost: one pass over a byte an entry of the tensor, each way; two where some are not sent.

    Paper: karimireddy2019error.
    """

    paper: ClassVar[str | None] = "karimireddy2019error"
    number: ClassVar[int | None] = 10
    needs_host: ClassVar[str] = (
        "sends a value for every entry, so that the whole tensor would travel"
    )

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
