"""Base class of codecs that send encoded indices, then values in a format of choice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hvd_sparse.codecs._values import (
    WHOLE_BYTES,
    check_format,
    decode_values,
    format_number,
    value_codes,
    values_bytes,
    write_values,
)
from hvd_sparse.codecs.contract import Codec
from hvd_sparse.kernels import packing
from hvd_sparse.kernels.packing import Packers
from hvd_sparse.types import Selection
from hvd_sparse.wire.frame import (
    HEADER_BYTES,
    Frame,
    need,
    open_frame,
    seal_frame,
    selection_from,
    write_parts,
)


@dataclass(frozen=True)
class ValuedCodec(Codec):
    """Base class of codecs that keep all indices and have an option for the values.

    Parameters
    ----------
    values : "float32", exact, 4 bytes (8 for float64 gradients); "float16" or "bfloat16", 2 bytes;
        "int8", 1 byte; "int4" and "int2", 4 and 2 bits, if ``formats`` has them

    Attributes
    ----------
    formats : the accepted ``values``
    """

    values: str = "float32"

    is_exact_for_signs: ClassVar[bool] = False
    formats: ClassVar[tuple[str, ...]] = WHOLE_BYTES

    def __post_init__(self) -> None:
        check_format(self.values, type(self).__name__, self.formats)

    @property
    def is_exact(self) -> bool:
        return self.values == "float32"

    @property
    def sends_zeros(self) -> bool:
        return self.values != "int2"

    def encode(self, selection: Selection, kernels: Packers = packing) -> np.ndarray:
        if not self.sends_zeros:
            selection = selection.without_zeros()
        parts, values = self.encode_indices(selection, kernels), selection.values
        index_bytes = sum(part.nbytes for part in parts)
        bytes_of_values = values_bytes(values.size, self.values, values.itemsize)
        buffer = np.empty(HEADER_BYTES + index_bytes + bytes_of_values, np.uint8)
        write_values(values, self.values, buffer[write_parts(buffer, parts) :], kernels)
        assert self.number is not None
        return seal_frame(
            buffer,
            self.number,
            values.dtype,
            selection.numel,
            selection.count,
            format_number(self.values),
        )

    def decode(self, buffer: np.ndarray, kernels: Packers = packing) -> Selection:
        frame = open_frame(buffer, self, format_number(self.values))
        offset = frame.body.size - values_bytes(frame.count, self.values, frame.value_type.itemsize)
        need(offset >= 0, f"a body of {frame.body.size} bytes cannot hold {frame.count} values")
        indices = self.decode_indices(frame.body[:offset], frame.count, frame.numel, kernels)
        return selection_from(frame, indices, self.read_values(frame, offset, kernels))

    def body_bytes(self, count: int, numel: int, value_bytes: int = 4) -> float:
        return self.index_bytes(count, numel) + values_bytes(count, self.values, value_bytes)

    def read_values(self, frame: Frame, offset: int, kernels: Packers) -> np.ndarray:
        """Decode the values from ``offset`` in the body, whose length the caller has checked."""
        prefix, codes = value_codes(frame, offset, frame.count, self.values, kernels)
        return decode_values(prefix, codes, self.values, frame, kernels)

    def encode_indices(self, selection: Selection, kernels: Packers) -> list[np.ndarray]:
        """Return the encoded indices as arrays, to be concatenated."""
        raise NotImplementedError

    def decode_indices(
        self, body: np.ndarray, count: int, numel: int, kernels: Packers
    ) -> np.ndarray:
        """Decode the indices, uint32 [count], ascending.

        Raises
        ------
        CorruptPayload : they do not fill the body exactly
        """
        raise NotImplementedError

    def index_bytes(self, count: int, numel: int) -> float:
        """Return the bytes of the body without the values; see ``body_bytes``."""
        raise NotImplementedError
