from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import decode_presence, encode_presence, packed_bytes
from hvd_sparse.codecs.contract import SignCodec, Signs
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need_ascending, need_size


@CODECS.register("two_bit")
@dataclass(frozen=True)
class TwoBit(SignCodec):
    """Send 0, plus or minus for every entry of the tensor, 2 bits each, and one magnitude.

        body: float32 or float64 magnitude; two bits per entry of the tensor, the first entry
              lowest: 0 not sent, 1 plus, 2 minus

    Cost of encoding and of decoding: one pass over an array with two bytes per entry of the tensor.

    Paper: wen2017terngrad.
    """

    number = 11
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"

    def encode_signs(self, kept: Selection, kernels: Packers) -> list[np.ndarray]:
        places = 2 * kept.indices.astype(np.int64) + np.signbit(kept.values)
        return [encode_presence(places, 2 * kept.numel)]

    def decode_signs(self, frame: Frame, kernels: Packers) -> Signs:
        need_size(frame, int(self.signs_bytes(frame.count, frame.numel)))
        places = decode_presence(frame.body, frame.count, 2 * frame.numel)
        indices = (places >> 1).astype(np.uint32)
        need_ascending(indices, frame.numel)  # otherwise an entry would be both plus and minus
        return indices, (places & 1).astype(np.bool_)

    def signs_bytes(self, count: int, numel: int) -> float:
        return packed_bytes(numel, 2)
