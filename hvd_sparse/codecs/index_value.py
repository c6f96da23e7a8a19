from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs.contract import Codec
from hvd_sparse.errors import CorruptPayload
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.kernels.rows import PLAIN
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import need_ascending, need_size, open_frame, write_frame

INDEX = np.dtype("<u4")


@CODECS.register("index_value")
@dataclass(frozen=True)
class IndexValue(Codec):
    """Send 32-bit indices, then the values: 8 bytes an entry, 12 for float64 gradients.

        body: uint32 indices [count], float32 or float64 values [count], little-endian

    The codec is exact: ``decode(encode(selection))`` equals the selection bit for bit. Cost of
    encoding and of decoding: one copy and one CRC-32 of the entries.

    Paper: aji2017sparse.
    """

    number = 1
    row_body = PLAIN
    needs_host = ""

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        indices, values = selection.indices.astype(INDEX, copy=False), selection.values
        return write_frame(1, values.dtype, selection.numel, indices.size, [indices, values])

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        frame = open_frame(buffer, self)
        need_size(frame, frame.count * (4 + frame.value_type.itemsize))
        body, end = frame.body, 4 * frame.count
        indices = body[:end].view(INDEX)
        need_ascending(indices, frame.numel)
        values = body[end:].view(frame.value_type)
        # A finite sum of squares proves finite values; an infinite one may have overflowed.
        if not (values.dot(values) < math.inf or np.isfinite(values).all()):
            raise CorruptPayload("a payload has NaN or Inf among its values")
        return Selection(indices, values, frame.numel)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return count * (4 + value_bytes)
