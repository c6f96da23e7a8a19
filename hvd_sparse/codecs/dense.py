from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hvd_sparse.codecs._values import (
    ValuedCodec,
    decode_values,
    encode_values,
    missing_code,
    value_codes,
    values_bytes,
)
from hvd_sparse.kernels import reference
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.registry import CODECS
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import VALUE_FORMATS, need, need_size, open_frame, write_frame


@CODECS.register("dense")
@dataclass(frozen=True)
class Dense(ValuedCodec):
    """Send a code for every entry of the tensor, and no indices.

        body: values [numel]; entries that are not sent have the code with all bits set
              (0x80 in int8)

    At density 1, no other codec sends values of the same format in fewer bytes. Entries that are
    not sent differ from sent zeros, because their code is a NaN (-128 in int8), which no sent value
    has. Cost of encoding and of decoding: one pass over the tensor.
    """

    number = 6
    needs_host = "sends a value for every entry, so that the whole tensor is copied anyway"

    def encode(self, selection: Selection, kernels: Packers = reference) -> np.ndarray:
        prefix, codes = encode_values(selection.values, self.values, kernels)
        if selection.count < selection.numel:
            everything = np.full(selection.numel, missing_code(codes.itemsize), codes.dtype)
            everything[selection.indices] = codes
            codes = everything
        dtype, values_format = selection.values.dtype, VALUE_FORMATS[self.values]
        return write_frame(
            6, dtype, selection.numel, selection.count, [prefix, codes], values_format
        )

    def decode(self, buffer: np.ndarray, kernels: Packers = reference) -> Selection:
        frame = open_frame(buffer, self, VALUE_FORMATS[self.values])
        need_size(frame, int(self.body_bytes(frame.count, frame.numel, frame.value_type.itemsize)))
        prefix, codes = value_codes(frame, 0, frame.numel, self.values, kernels)
        if frame.count == frame.numel:
            indices: np.ndarray = np.arange(frame.numel, dtype=np.uint32)
        else:
            indices = np.flatnonzero(codes != missing_code(codes.itemsize)).astype(np.uint32)
            need(
                indices.size == frame.count,
                f"{indices.size} entries have values, and the header has a count of {frame.count}",
            )
            codes = codes[indices]
        values = decode_values(prefix, codes, self.values, frame, kernels)
        return Selection(indices, values, frame.numel)

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return values_bytes(numel, self.values, value_bytes)
