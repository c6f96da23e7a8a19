from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._bits import decode_presence, encode_presence, packed_bytes
from hvd_sparse.codecs._values import ValuedCodec
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import Frame, need_size


@CODECS.register("bitmap")
@dataclass(frozen=True)
class Bitmap(ValuedCodec):
    """Send a bitmap that marks the sent entries of the tensor, and the values of these entries.

        body: ceil(numel / 8) bytes, the first entry in the lowest bit, padded with zeros; values

    This codec is for high densities, because the bitmap costs 1 / density bits per sent entry. Cost
    of encoding and of decoding: one pass over an array with one byte per entry of the tensor.

    Paper: xu2021deepreduce.
    """

    number = 5
    needs_host = ""

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        return [encode_presence(selection.indices, selection.numel)]

    def decode_indices(self, frame: Frame, kernels: Packers) -> np.ndarray:
        need_size(frame, packed_bytes(frame.numel, 1))
        return decode_presence(frame.body, frame.count, frame.numel).astype(np.uint32)

    def index_bytes(self, count: int, numel: int) -> float:
        return packed_bytes(numel, 1)
